"""Options that commands share: numbers and lists of them, GPUs."""

from __future__ import annotations

import itertools
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuledger.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from gpuledger.readers.gpus import Gpu

MAX_NUMBER, MAX_ROWS = 2**31, 100_000

gpu_file_option = click.option(
    "--gpu-file", type=click.Path(path_type=Path), help="GPUs of your own: CSV with the columns of resources/gpus.csv."
)


def number(text: str, option: str) -> int:
    """Read a whole number; `option` names the option in the error."""
    if not (text.isascii() and text.isdigit() and len(text) < 11 and 1 <= int(text) <= MAX_NUMBER):
        problem = f"'{text}' is not a whole number from 1 to {MAX_NUMBER:,}"
        raise InputError("command line", option, problem, "write one, such as 1024")
    return int(text)


def numbers(text: str, option: str) -> list[int]:
    """Read ``64``, ``1,8,64`` and ``1..256``, also mixed."""
    found: list[int] = []
    for part in text.split(","):
        ends = part.strip().split("..")
        if len(ends) > 2 or not all(end.isascii() and end.isdigit() and 0 < len(end) < 11 for end in ends):
            problem = f"'{part}' is not a whole number from 1 to {MAX_NUMBER:,}"
            raise InputError("command line", option, problem, "write 64, 1,8,64 or 1..256")
        low, high = int(ends[0]), int(ends[-1])
        if not 1 <= low <= high <= MAX_NUMBER:
            remedy = f"use 1 to {MAX_NUMBER:,}" + (", the smaller number first" if ".." in part else "")
            raise InputError("command line", option, f"'{part}' is out of range", remedy)
        if high - low >= MAX_ROWS:
            problem = f"'{part}' is {high - low + 1:,} numbers"
            raise InputError("command line", option, problem, f"ask for at most {MAX_ROWS:,}")
        found += range(low, high + 1)
    return list(dict.fromkeys(found))


class Count(click.ParamType):
    """A whole number; of `several`, a list as :func:`numbers` reads it. With `zero`, 0 is one, too."""

    name = "text"

    def __init__(self, several: bool = False, zero: bool = False) -> None:
        self.several, self.zero = several, zero

    def convert(self, value: Any, param: click.Parameter, _: click.Context) -> Any:
        """Read what the user, or the default, says."""
        option = param.opts[0] if isinstance(param, click.Option) else param.name.upper()
        if self.zero and value == "0":
            return [0] if self.several else 0
        return numbers(value, option) if self.several else number(value, option)


COUNTS = Count(several=True)
count, counts = partial(click.option, type=Count()), partial(click.option, type=COUNTS)
count_or_zero = partial(click.option, type=Count(zero=True))


def needed_gpus(ids: tuple[str, ...], file: Path | None) -> list[Gpu]:
    """Return the GPUs as :func:`chosen_gpus` does; at least one has to be named."""
    if not (chosen := chosen_gpus(ids, file)):
        raise InputError("command line", "--gpu", "no GPU is given", "name one, such as h200-sxm (gpuledger gpus)")
    return chosen


def chosen_gpus(ids: tuple[str, ...], file: Path | None) -> list[Gpu]:
    """Return the GPUs of ``--gpu`` (each may list several), or all of ``--gpu-file``; none without both."""
    from gpuledger.readers.gpus import find_gpu, read_gpus, with_built_in

    own = read_gpus(file) if file else {}
    ids = tuple(name.strip() for text in ids for name in text.split(","))
    every = with_built_in(own)
    found = [find_gpu(name, every, "command line", "--gpu") for name in ids] or list(own.values())
    return list({gpu.name: gpu for gpu in found}.values())


def check_count(count: int, most: int = MAX_ROWS, what: str = "combinations") -> None:
    """Refuse more rows than `most`."""
    if count > most:
        raise InputError("command line", "", f"{count:,} {what}", f"ask for at most {most:,}")


def shapes_of(**sizes: list[int]) -> pd.DataFrame:
    """Return every combination of sizes, one column each; refuse more than `MAX_ROWS`."""
    import pandas as pd

    check_count(prod(map(len, sizes.values())), what="shapes")
    return pd.DataFrame(itertools.product(*sizes.values()), columns=list(sizes))
