"""What ``gpuledger gemm`` and ``gpuledger attention`` share: their options, and the table that they print."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuledger import files
from gpuledger.cli.options import check_count, chosen_gpus, gpu_file_option
from gpuledger.cli.terminal import BOUNDS, json_option, print_columns, print_json, say, three_digits
from gpuledger.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from gpuledger.readers.gpus import Gpu

#: Where the dataset ``aiconfigurator`` keeps its tables.
TABLES = "traces/aiconfigurator/aiconfigurator_core/systems/data"
_OPTIONS = (
    click.option("--gpu", "gpu_ids", multiple=True, help="GPU; several: a100,h200-sxm.  [default: all measured ones]"),
    gpu_file_option,
    click.option(
        "--engine", type=click.Choice(["trtllm", "vllm", "sglang", "pytorch"]), help="Whose kernels.  [default: all]"
    ),
    click.option("--measured", help="A time that you measured, such as 215us, to compare with."),
    click.option(
        "--tables",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        help=f"AIConfigurator's measured tables.  [default: {TABLES}, where it is]",
    ),
    json_option,
)
_SUSTAINED = "sustained (µs)"
#: What a narrow terminal leaves out.
_SPARE = ("waves", "split-k", "tile", "GB/s", "TFLOP/s", "roof (%)", "corrected (µs)", "limited by", _SUSTAINED)


def kernel_options(command: Callable) -> Callable:
    """Add the options that commands about single kernels share."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def report(
    shapes: pd.DataFrame,
    predict: Callable[[Gpu, Path | None, bool], pd.DataFrame],
    measured_gpus: Sequence[Gpu],
    gpu_ids: tuple[str, ...],
    gpu_file: Path | None,
    measured: str | None,
    tables: Path | None,
    as_json: bool,
) -> None:
    """Predict shapes on GPUs and print them; without GPUs, the fastest kernel of each measured one.

    Parameters
    ----------
    shapes : DataFrame
        A column for each size.
    predict : function
        From a GPU, the folder of measured tables and whether only the fastest kernels are asked for to the columns of
        :func:`gpuledger.studies.kernel_time.single_kernels.single_gemms`.
    """
    import pandas as pd

    own_s = _seconds(measured) if measured else None
    gpus = chosen_gpus(gpu_ids, gpu_file)
    asked = gpus or measured_gpus
    if not asked:
        raise InputError("command line", "--gpu", "no GPU was measured with such kernels", "name one, such as a100")
    check_count(len(shapes) * len(asked))
    if own_s and len(shapes) > 1:
        raise InputError("command line", "--measured", f"it is one time for {len(shapes):,} shapes", "give one shape")
    found = files.ROOT / TABLES
    tables = tables or (found if found.is_dir() else None)
    table = pd.concat([predict(gpu, tables, not gpus) for gpu in asked], ignore_index=True)
    sizes, by_gpu = list(shapes), table["gpu"].map({gpu.name: place for place, gpu in enumerate(asked)})
    # Kernels whose error is known come first.
    order = table.assign(place=by_gpu, unknown=table["error_percent"].isna())
    table = table.loc[order.sort_values([*sizes, "place", "unknown", "time_s"], kind="stable").index]
    if own_s:
        table = table.assign(yours_per_predicted=own_s / table["time_s"])
    if as_json:
        print_json(table.to_dict("records"))
    else:
        _print(table, sizes, "" if gpus else ", of the fastest kernel on each GPU")


def _print(table: pd.DataFrame, sizes: Sequence[str], which: str) -> None:
    first = table.iloc[0]
    several = [name for name in sizes if table[name].nunique() > 1]
    one = ", ".join(_named(name, first[name]) for name in sizes if name not in several and first[name])
    if not several:
        work = f"{three_digits(first['flop'] / 1e9)} GFLOP, {three_digits(first['bytes'] / 1e6)} MB"
        one += f": {work}, {three_digits(first['flop'] / first['bytes'])} FLOP/byte"
    head = [first["precision"], one]
    shown = {"kernel": table["kernel"], "engine": table["engine"], "GPU": table["gpu"]}
    shown |= {name.replace("_", " "): [f"{value:,}" for value in table[name]] for name in several}
    shown["time (µs)"] = [three_digits(value * 1e6) for value in table["time_s"]]
    shown["error (%)"] = ["unknown" if value != value else f"{value:.1f}" for value in table["error_percent"]]
    if "yours_per_predicted" in table:
        shown["yours/predicted"] = [f"{value:.2f}" for value in table["yours_per_predicted"]]
    if "measured_s" in table and table["measured_s"].notna().any():
        shown["measured (µs)"] = [_nearest(row, sizes) for row in table.to_dict("records")]
    # A shape that was measured needs no correction.
    others = ["(" in text for text in shown.get("measured (µs)", ())]
    if any(others) and "corrected_s" in table and table["corrected_s"].notna().any():
        values = zip(table["corrected_s"] * 1e6, table["corrected_error_percent"], others, strict=True)
        shown["corrected (µs)"] = [
            f"{three_digits(value)} ± {error:.1f} %" if other and value == value else ""
            for value, error, other in values
        ]
    if "sustained_s" in table and (table["sustained_s"] > 1.01 * table["time_s"]).any():
        values = zip(table["sustained_s"] * 1e6, table["sustained_mhz"], strict=True)
        shown[_SUSTAINED] = [f"{three_digits(us)} at {mhz:,.0f} MHz" if us == us else "" for us, mhz in values]
    shown["TFLOP/s"] = [three_digits(value / 1e12) for value in table["flop"] / table["time_s"]]
    shown["GB/s"] = [three_digits(value / 1e9) for value in table["bytes"] / table["time_s"]]
    shown["roof (%)"] = [f"{value:.0f}" for value in 100 * table["roofline_s"] / table["time_s"]]
    if "tile_m" in table:
        shown["tile"] = [f"{m:.0f}×{n:.0f}" for m, n in zip(table["tile_m"], table["tile_n"], strict=True)]
        shown |= {name.replace("_", "-"): [f"{value:.0f}" for value in table[name]] for name in ("split_k", "waves")}
    shown["limited by"] = table["bound"].replace(BOUNDS)
    # What is the same in all rows is said once.
    for name in ("engine", "GPU", "split-k"):
        if len(table) > 1 and len(same := set(shown.get(name, ()))) == 1:
            head.append(f"{name} {same.pop()}")
            del shown[name]
    say(", ".join(filter(None, head)) + "\n")
    left = ("kernel", "engine", "GPU", "limited by", "measured (µs)", _SUSTAINED)
    left_out = print_columns(shown, left, _SPARE)
    say(f"\nTimes are predicted{which}; the error is the mean over measured shapes that the kernel was not fitted to.")
    if "measured (µs)" in shown:
        say("Measured: this shape, or the nearest one where sizes are named.")
    if "corrected (µs)" in shown and "corrected (µs)" not in left_out:
        say("Corrected: the time, by what its errors at the nearest measured shapes share; ± the mean error left.")
    if _SUSTAINED in shown and _SUSTAINED not in left_out:
        say("Sustained: run all the time, at the clock to which the power limit lowers the GPU; judged in bf16.")
    stand_in = table[table["error_percent"].isna()]
    for gpu, rows in stand_in.groupby("gpu", sort=False):
        origins = ", ".join(dict.fromkeys(rows["stands_in"]))
        say(f"Unknown errors: {gpu} was not measured so; constants of {origins}.")


def _nearest(row: dict, sizes: Sequence[str]) -> str:
    """Return the time of the nearest measured shape and, if it is another one, its sizes that differ."""
    if row["measured_s"] != row["measured_s"]:
        return ""
    found = {name: int(row[f"measured_{name}"]) for name in sizes}
    others = ", ".join(_named(name, size) for name, size in found.items() if size != row[name])
    return three_digits(row["measured_s"] * 1e6) + (f" ({others})" if others else "")


def _named(name: str, size: int) -> str:
    return f"{name.replace('_', ' ')} {size:,}"


def _seconds(text: str) -> float:
    from gpuledger.readers.tabular import seconds_of

    seconds = seconds_of(text)
    if not 0 < seconds < 3600:
        raise InputError("command line", "--measured", f"'{text}' is not a time", "write it with its unit: 215us")
    return seconds
