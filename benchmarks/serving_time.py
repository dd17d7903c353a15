"""Errors of served runs' time per output token: this project's, and AIConfigurator's on the same runs.

    python benchmarks/serving_time.py [--dataset NAME] [--gpu h100 …] [--every N] [--decode-only | --parallelism]
        [--peer PYTHON|install]

The runs are those that the study `serving_time` can express, every N-th of them. AIConfigurator 0.12.0 looks kernels up
in tables of the very GPUs; it is asked twice: for a step of decoding alone (`static_gen`), beside our sum of a decode
step's kernels, and for its model of continuous batching (`agg`), beside our prediction with other requests' prompts.
Of workers that only decode (`--decode-only`) it is asked for the first, with the requests that we say decode at a
time. With `--parallelism` both choose a parallelism, as the case `parallelism` does, of every N-th workload; only the
runs that AIConfigurator predicts are there to choose from. Neither has a fitted term. It runs in an environment of its
own: `--peer` names a Python that has it, or `install` makes one in a temporary folder.

The dataset `served-runs` is in the checkout; `aiconfigurator` must have been downloaded
(`snakemake results/aiconfigurator/serving_time/h200/summary.json`).
"""

import argparse
import json
import subprocess
import sys
import tempfile

import numpy as np
import pandas as pd
from measure import install

from gpuledger import files
from gpuledger.ledger.datasets import Case, Dataset
from gpuledger.readers.gpus import Gpu, find_gpu
from gpuledger.studies.serving_time import parallelism, reduce
from gpuledger.studies.serving_time.prediction import predict_runs
from gpuledger.studies.serving_time.runs import CONFIGURATIONS, TOGETHER, read_runs
from gpuledger.studies.serving_time.sweeps import mean_lengths

PEER = "aiconfigurator==0.12.0"
#: Reads keyword arguments as JSON, writes for each the times per output token (ms) of all modes; null: it refuses.
CHILD = """
import contextlib, json, logging, sys
logging.disable(logging.CRITICAL)
from aiconfigurator.cli.api import cli_estimate
found = []
with contextlib.redirect_stdout(sys.stderr):
    for given in json.load(sys.stdin):
        pair = []
        for mode in sys.argv[1:]:
            try:
                pair.append(float(cli_estimate(mode=mode, **given).tpot))
            except Exception:
                pair.append(None)
        found.append(pair)
json.dump(found, sys.stdout)
"""
#: What AIConfigurator calls the sizes of a run.
SIZES = {
    **{"batch_size": "requests", "tp_size": "tensor", "pp_size": "pipeline", "attention_dp_size": "replicas"},
    **{"moe_tp_size": "expert_shards", "moe_ep_size": "expert_ranks"},
}


def arguments_of(row: pd.Series, run: pd.Series) -> dict:
    """What AIConfigurator is asked for one run: of its row of the table, with the sizes and lengths that we take."""
    model = CONFIGURATIONS.get(row["model_path"], row["model_path"])
    given = {"model_path": model, "system_name": row["system"], "backend_name": row["backend"]}
    given |= {theirs: int(run[ours]) for theirs, ours in SIZES.items() if run[ours] > 0}
    given |= {"isl": int(run["isl"]), "osl": int(run["osl"])}
    modes = ("gemm_quant_mode", "moe_quant_mode")
    # What gpt-oss stores in mxfp4 stands as nvfp4 in the table; AIConfigurator knows better.
    return given | {name: row[name] for name in modes if isinstance(row.get(name), str) and "gpt-oss" not in model}


def runs_of(case: Case, gpu: Gpu) -> pd.DataFrame:
    """The runs of a case on one GPU by id, with their mean lengths."""
    runs, _ = read_runs(case, gpu)
    new, out = mean_lengths(runs)
    return runs.assign(isl=new, osl=out).set_index("id")


def ask(python: str, given: list[dict], modes: list[str]) -> np.ndarray:
    """AIConfigurator's times (s) in so many modes, a column each; NaN where it has none."""
    child = subprocess.run(
        [python, "-c", CHILD, *modes], input=json.dumps(given), stdout=subprocess.PIPE, check=True, text=True
    )
    return np.array(json.loads(child.stdout), dtype=float).reshape(-1, len(modes)) / 1e3


def errors(predicted: pd.Series, measured: pd.Series) -> str:
    error = 100 * (predicted / measured - 1)
    return f"{error.abs().median():7.1f} {error.abs().mean():7.1f} {1 + error.median() / 100:7.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dataset", default="aiconfigurator", help="whose cases of serving_time; or served-runs")
    parser.add_argument("--gpu", nargs="*", default=["h100", "h200", "b200"])
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument(
        "--decode-only", action="store_true", help="runs whose workers only decode, instead of all others"
    )
    parser.add_argument("--parallelism", action="store_true", help="which parallelism both would choose, and its worth")
    parser.add_argument("--peer", help="a Python that has AIConfigurator, or `install`")
    arguments = parser.parse_args()
    dataset = Dataset.load(files.ROOT / "traces" / arguments.dataset / "dataset.yaml")
    if arguments.parallelism:
        judge_choices(dataset.case("serving_time", "parallelism"), arguments)
        return
    cases = [dataset.case("serving_time", gpu) for gpu in arguments.gpu]
    ours = pd.concat([reduce(case).data.assign(gpu=case.name) for case in cases], ignore_index=True)
    ours = ours[(ours["mode"] != TOGETHER) == arguments.decode_only]
    # Every N-th of all in the order of their configurations, so that each kind of run has its share.
    order = ["gpu", "engine", "model", "precision", "gpus", "input_tokens", "output_tokens", "requests", "id"]
    sample = ours.sort_values(order, ignore_index=True).iloc[:: arguments.every].reset_index(drop=True)
    print(f"{len(sample):,} of {len(ours):,} runs; median error and MAPE in %, median of predicted / measured")
    if not arguments.peer:
        print("AIConfigurator is left out: --peer install runs it in an environment of its own")
        show("gpuledger", sample, ["decode_s"] if arguments.decode_only else ["decode_s", "kernels_s"])
        return
    table = pd.read_csv(cases[0].path("runs")).set_index("id").loc[sample["id"]]
    with tempfile.TemporaryDirectory() as folder:
        python = install(folder, PEER) if arguments.peer == "install" else arguments.peer
        runs = pd.concat([runs_of(case, find_gpu(case.inputs["gpu"])) for case in cases]).loc[sample["id"]]
        if arguments.decode_only:
            runs["requests"] = sample["decoding"].to_numpy()
        pairs = zip(table.iterrows(), runs.iterrows(), strict=True)
        given = [arguments_of(row, run) for (_, row), (_, run) in pairs]
        modes = {"peer_decode_s": "static_gen"} | ({} if arguments.decode_only else {"peer_s": "agg"})
        sample[list(modes)] = ask(python, given, list(modes.values()))
    both = sample[sample[list(modes)].notna().all(axis=1)]
    print(f"{len(sample) - len(both)} of them AIConfigurator refuses; the others:")
    names = ["decode_s", "peer_decode_s", *([] if arguments.decode_only else ["kernels_s", "peer_s"])]
    for title, part in [("all", both), *both.groupby("gpu"), *both.groupby("engine"), *both.groupby("model")]:
        show(title, part, names)


def judge_choices(case: Case, arguments: argparse.Namespace) -> None:
    """Print what the parallelisms attain that either chooses."""
    gpus = [find_gpu(name) for name in case.inputs["gpus"]]
    predicted = [predict_runs(case, gpu, served=True) for gpu in gpus]
    ours = pd.concat([one.data.assign(gpu=gpu.name) for gpu, one in zip(gpus, predicted, strict=True)])
    several = ours.groupby(parallelism.WORKLOAD)["parallelism"].transform("nunique") > 1
    numbers = ours[several].groupby(parallelism.WORKLOAD).ngroup()
    sample = ours.loc[several][numbers % arguments.every == 0].reset_index(drop=True)
    choosers = {"gpuledger": "kernels_s"}
    if arguments.peer:
        with tempfile.TemporaryDirectory() as folder:
            python = install(folder, PEER) if arguments.peer == "install" else arguments.peer
            table = pd.read_csv(case.path("runs")).set_index("id").loc[sample["id"]]
            runs = pd.concat([runs_of(case, gpu) for gpu in gpus]).loc[sample["id"]]
            pairs = zip(table.iterrows(), runs.iterrows(), strict=True)
            given = [arguments_of(row, run) for (_, row), (_, run) in pairs]
            sample["peer_s"] = ask(python, given, ["agg"])[:, 0]
        print(f"{sample['peer_s'].isna().sum()} of {len(sample):,} runs AIConfigurator refuses; the others:")
        sample, choosers["AIConfigurator"] = sample[sample["peer_s"].notna()], "peer_s"
    for name, column in choosers.items():
        decided = parallelism.choices(parallelism.points(sample.assign(kernels_s=sample[column])))
        for title, part in [("all", decided), *decided.groupby("gpu")]:
            found, workloads = parallelism.averages(part), part.groupby(parallelism.WORKLOAD).ngroups
            best = f"best chosen {found['best_chosen']:.1f}, by chance {found['best_by_chance']:.1f}"
            rules = ", ".join(f"{rule} {found[rule]:.1f}" for rule in ("fewest", "most", "any"))
            print(f"{name:15} {title:9} ({workloads:3}) {found['predicted']:5.1f} % of best; {best}; {rules}")


def show(title: str, part: pd.DataFrame, names: list[str]) -> None:
    words = {
        **{"decode_s": "decode step, gpuledger", "peer_decode_s": "decode step, AIConfigurator"},
        **{"kernels_s": "with prompts, gpuledger", "peer_s": "with prompts, AIConfigurator"},
    }
    print(f"{title} ({len(part):,})")
    for name in names:
        print(f"  {words[name]:30} {errors(part[name], part['measured_s'])}")


if __name__ == "__main__":
    sys.exit(main())
