"""``gpuledger profile``: what each kernel of an ncu file did."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuledger.cli.terminal import json_option, print_columns, print_json, print_table, say
from gpuledger.cli.timeline_kernels import print_comparison, print_timeline
from gpuledger.errors import InputError

if TYPE_CHECKING:
    from gpuledger.cli.found import Found
    from gpuledger.ledger.case_result import CaseResult

#: Totals that ``--json`` gives beside the kernels, all but the first with a baseline: times (s), and counts.
TIMES = ("time", "baseline_time", "common_time", "common_baseline_time")
COUNTS = ("kernels_only_here", "kernels_only_in_baseline", "kernels_launched_otherwise")
#: What a narrow terminal leaves out.
_SPARE = ("registers", "FLOP/byte", "GFLOP", "DRAM (MB)", "occupancy (%)")
_EXISTING = click.Path(path_type=Path)


@click.command(
    short_help="What each kernel of an ncu file or a timeline did.",
    epilog="Example: gpuledger profile after.csv --baseline before.csv, or: ncu ./program | gpuledger profile -",
)
@click.argument("file", type=_EXISTING)
@click.option("--baseline", type=_EXISTING, help="The same program before a change.")
@click.option("--gpu", help="GPU whose data sheet gives the roofs that the file does not hold, such as h100-sxm.")
@click.option("--decimal", type=click.Choice([".", ","]), help="Decimal sign, where the values leave it open.")
@click.option("--launches", "by_launch", is_flag=True, help="One row per launch instead of one per kernel.")
@click.option(
    "--save", type=click.Path(file_okay=False, path_type=Path), help="Write figures, tables and data to a folder."
)
@json_option
def profile(
    file: Path,
    baseline: Path | None,
    gpu: str | None,
    decimal: str | None,
    by_launch: bool,
    save: Path | None,
    as_json: bool,
) -> None:
    """Print what each kernel of FILE did and what limited it.

    FILE is any output of Nsight Compute: a report, CSV, or what it prints in a terminal; - for standard input. Of a
    timeline (torch.profiler, JAX, Paddle, ONNX Runtime, Nsight Systems, rocprof, proton), the launches and the time of
    each kernel; with a baseline, what made a step shorter or longer.
    """
    from gpuledger.ledger.stored_data import parts
    from gpuledger.readers.gpus import find_gpu
    from gpuledger.readers.ncu.quantities import OPTIONS
    from gpuledger.studies.kernel_profile import kernel_table
    from gpuledger.studies.kernel_profile import profile as compute

    sheet = find_gpu(gpu, file="command line", place="--gpu") if gpu else None
    with _on_disk(file) as path:
        try:
            result = compute(path, baseline, sheet, decimal=decimal)
        except InputError as error:
            found = _recognised(Path(error.file))
            if _is_timeline(found) and not by_launch and found.path == path:
                return _timeline(path, baseline, save, as_json)
            raise _something_else(error, found) or error from None
        if save is not None:
            _save(result, (path, baseline), save, "kernel_profile", "kernel_profile")
        missing = {name[8:]: entry["value"] for name, entry in result.summary.items() if name.startswith("missing_")}
        others = _other_metrics(path, decimal) if len(missing) == len(OPTIONS) and not as_json else ""
    table = kernel_table(result.data)
    if as_json:
        rows = [row for part in (parts(result.data) if by_launch else [table]) for row in part.to_dict("records")]
        compared = {f"{name}_s": result[name] for name in TIMES if name in result.summary}
        compared |= {name: result[name] for name in COUNTS if name in result.summary}
        # As in the kernels' rows: what was not recorded is null.
        compared = {name: None if isinstance(value, str) else value for name, value in compared.items()}
        print_json({"launches": result["launches"], **compared, "kernels": rows})
        return
    say(result.finding)
    say()
    if by_launch:
        _print_launches(result)
    else:
        _print_kernels(table)
    if others:
        say(f"\nRecorded, but nothing that is shown here: {others}; ncu --set full records times and most of the rest")
    elif missing:
        say("\nNot recorded, and what would collect it:")
        for name, option in missing.items():
            say(f"  {name}: {option}")


def _other_metrics(path: Path, decimal: str | None) -> str:
    """Return the first names of the metrics in a file, without .sum, .avg and so on, and how many more there are."""
    from gpuledger.readers.ncu.reader import read_parts

    found = (name for part in read_parts(path, decimal) for name in part.metrics["metric"].unique())
    names = dict.fromkeys(str(name).partition(".")[0] for name in found)
    return ", ".join(list(names)[:4]) + (f" and {len(names) - 4:,} more" if len(names) > 4 else "")


def _recognised(path: Path) -> Found | None:
    """Recognise a file that is no output of Nsight Compute; None of one of which the reader has said what is wrong."""
    from gpuledger.cli.recognise import recognise

    found = recognise(path)[0] if path.is_file() else None
    left = found is None or found.format.startswith(("unknown", "empty file", "gzip", "dataset", "Nsight Compute"))
    return None if left else found


def _is_timeline(found: Found | None) -> bool:
    return found is not None and "timeline" in found.cases.get("kernel_breakdown", {})


def _timeline(path: Path, baseline: Path | None, save: Path | None, as_json: bool) -> None:
    """Print the kernels of a timeline, or what changed against another one."""
    from gpuledger.readers.timelines import read_timeline
    from gpuledger.studies.kernel_breakdown.comparison import compare
    from gpuledger.studies.kernel_breakdown.timeline.case import break_down

    if baseline is None:
        timeline = read_timeline(path)
        result = break_down(timeline)
        if save is not None:
            _save(result, (path,), save, "kernel_breakdown", "kernel_breakdown_timeline")
        return print_timeline(timeline, result, as_json)
    if not _is_timeline(found := _recognised(baseline)):
        what = found.format if found else "it is no timeline"
        raise InputError(baseline, "", what, f"give a timeline as {path.name} is one")
    result = compare(path, baseline)
    if save is not None:
        _save(result, (path, baseline), save, "kernel_breakdown", "kernel_breakdown_comparison")
    print_comparison(result, as_json)


def _something_else(error: InputError, found: Found | None) -> InputError | None:
    """Return what to say of a file that is no output of Nsight Compute, or None."""
    path = Path(error.file)
    if path.is_dir():
        return InputError(path, "", "it is a folder", "give a file in it; gpuledger inspect says what is in a folder")
    if found is None:
        return None
    if _is_timeline(found):
        remedy = "give it alone, or with another timeline as --baseline; not with --launches"
    else:
        remedy = found.problems[0] if found.problems else "gpuledger inspect says which studies can use it"
    return InputError(error.file, "", f"{found.format}, not output of Nsight Compute", remedy)


@contextmanager
def _on_disk(file: Path) -> Iterator[Path]:
    """Provide standard input as a file, any other path as it is."""
    if str(file) != "-":
        yield file
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "standard-input")
        with path.open("wb") as target:
            shutil.copyfileobj(sys.stdin.buffer, target)
        try:
            yield path
        except InputError as error:
            file = "standard input" if error.file == str(path) else error.file
            raise InputError(file, error.place, error.problem, error.remedy) from None


def _print_kernels(table) -> None:
    from gpuledger.ledger.case_result import brief
    from gpuledger.studies.kernel_profile.tables import table_for_people

    shown = table_for_people(table)
    cells = shown.astype(object).where(shown.notna(), "")
    words = cells.map(lambda value: value if isinstance(value, str) else brief(value, 3))
    print_columns(dict(words.items()), ("kernel", "limited by", "kernel before"), _SPARE)


def _print_launches(result: CaseResult) -> None:
    import pandas as pd

    from gpuledger.ledger.case_result import brief
    from gpuledger.readers.kernel_names import labels

    columns = {"time_s": 1e6, "flops": 1e-9, "dram_bytes": 1e-6, "occupancy_percent": 1}
    chosen = result.data["recording"] == "report"
    own = pd.DataFrame({name: result.data[name][chosen] for name in (*columns, "kernel", "launch", "grid")})
    numbers = own[list(columns)].astype("float64") * pd.Series(columns)
    cells = numbers.map(lambda value: "" if pd.isna(value) else brief(value, 3)).to_numpy().tolist()
    texts = zip(labels(own["kernel"]), own["launch"].astype(str), cells, own["grid"], strict=True)
    rows = [[name, launch, *values, grid or ""] for name, launch, values, grid in texts]
    headers = ["kernel", "launch", "time (µs)", "GFLOP", "DRAM (MB)", "occupancy (%)", "grid"]
    filled = [at for at, cells in enumerate(zip(*rows, strict=True)) if at < 2 or any(cells)]
    rows = [[row[at] for at in filled] for row in rows]
    right = [place for place, at in enumerate(filled) if 0 < at < 6]
    print_table([headers[at] for at in filled], rows, right=right)


def _save(result: CaseResult, recordings: Sequence[Path | None], folder: Path, study: str, name: str) -> None:
    """Write a result, and the figures and tables that a notebook makes of it."""
    from gpuledger import __version__, files
    from gpuledger.ledger import notebooks, provenance

    known = [path for path in recordings if path]
    title = known[0].name
    result.provenance = {
        "dataset": "command line",
        "study": study,
        "case": title,
        "title": title,
        "kind": "recorded",
        "label": "recorded",
        "device": None,
        "source": title,
        "license": "not stated",
        "gpuledger": __version__,
        "inputs": [provenance.describe_file(path, path.parent, {"source": path.name}) for path in known],
        "knobs": {},
    }
    notebook = files.ROOT / f"notebooks/{name}.ipynb"
    if not notebook.is_file():
        raise InputError(notebook, "", "the notebook is not there", "run gpuledger from a checkout (pip install -e .)")
    files.check_writable(folder)
    say(f"writing {folder}", err=True)
    result.write(folder)
    parameters = {"dataset": "", "case": title, "results": str(folder.resolve()), "save_to": str(folder.resolve())}
    notebooks.execute(notebook, folder / "notebook.ipynb", parameters)
