"""Reader and writer of ``tensor.trace``: the tensors passed to each call.

Source: Neutrino trace format, as written by its call tracer: one line per tensor of each call, with fields separated by
two spaces.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuledger.errors import InputError
from gpuledger.files import write_text
from gpuledger.readers.neutrino.lines import read_lines

if TYPE_CHECKING:  # the recorder writes tensor traces on machines without pandas
    import pandas as pd

REMEDY = "give the tensor.trace of a trace directory"
#: Number of fields by tag: a returned tensor has no name.
FIELDS = {"[call]": 8, "[ret]": 7}
SHAPE = re.compile(r"torch\.Size\(\[((?:\d{1,18}(?:, ?\d{1,18})*)?)\]\)")
#: A text that two spaces can separate from others.
FIELD = re.compile(r"(?! )(?:(?!  )[^\n])+(?<! )")
COLUMNS = {
    "tensor": "str",
    "address": "uint64",
    "bytes": "int64",
    "shape": "object",
    "item_bytes": "Int64",
    "time_ns": "int64",
    "function": "str",
    "location": "str",
    "event": "str",
}


def read_tensor_trace(path: str | Path) -> pd.DataFrame:
    """Read a ``tensor.trace``.

    Returns
    -------
    DataFrame
        One row per tensor of each call, in file order. ``tensor``: name of the argument (for a returned tensor, which
        has none, the function's); ``address``; ``bytes`` of the whole storage, of which the tensor may be a view;
        ``shape``: tuple of ints; ``item_bytes``: bytes per element (1, 2, 4, 8 or 16) if they follow from storage and
        shape, else missing, because the file has no types; ``time_ns`` since 1970; ``function``; ``location``: file and
        line of the call; ``event``: call or ret.
    """
    import pandas as pd

    path = Path(path)
    rows = []
    for number, line in enumerate(read_lines(path, REMEDY), 1):
        if not line.strip():
            continue
        tag = line.partition("  ")[0]
        wanted = FIELDS.get(tag)
        fields = line.split("  ", wanted - 1) if wanted else []
        if not wanted or len(fields) != wanted:
            problem = f"{len(fields)} fields, but {tag} has {wanted}" if wanted else "no [call] or [ret] at its start"
            raise InputError(path, f"line {number}", f"truncated, or not a tensor.trace: {problem}", REMEDY)
        if tag == "[ret]":
            fields.insert(5, fields[5])
        _, time, shape, size, address, name, function, location = fields
        found = SHAPE.fullmatch(shape)
        if not found:
            raise InputError(path, f"line {number}", f"{shape[:60]!r} is not a torch.Size", REMEDY)
        for what, text, most in (("time", time, 2**63), ("size", size, 2**63), ("address", address, 2**64)):
            # The address is decimal, as in the documentation's example, though not in its text.
            if not re.fullmatch(r"[0-9]{1,20}", text) or int(text) >= most:
                raise InputError(path, f"line {number}", f"{text[:60]!r} is not a decimal {what}", REMEDY)
        extents = tuple(int(extent) for extent in found[1].split(",") if extent)
        items, rest = divmod(int(size), prod(extents) or int(size) + 1)
        item_bytes = items if not rest and items in (1, 2, 4, 8, 16) else None
        rows.append(
            (name, int(address), int(size), extents, item_bytes, int(time), function, location, tag.strip("[]"))
        )
    if not rows:
        raise InputError(path, "line 1", "no tensors", REMEDY)
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)


def write_tensor_trace(path: str | Path, tensors: pd.DataFrame | Sequence[Mapping[str, Any]]) -> None:
    """Write a ``tensor.trace`` atomically.

    Parameters
    ----------
    tensors : DataFrame, or sequence of mappings from column to value
        ``tensor``, ``address``, ``bytes`` and ``shape`` as :func:`read_tensor_trace` returns them. Optional, with their
        defaults: ``time_ns`` (0), ``function`` (``function``), ``location`` (``file:1``), ``event`` (``call``).

    Raises
    ------
    ValueError
        An event other than call and ret; a text that is empty or contains a line feed or a field separator.
    """
    defaults = {"time_ns": 0, "function": "function", "location": "file:1", "event": "call"}
    lines = []
    for given in tensors if isinstance(tensors, Sequence) else tensors.to_dict("records"):
        row = defaults | dict(given)
        event, location = row["event"], row["location"]
        names = [row["function"]] if event == "ret" else [row["tensor"], row["function"]]
        if event not in ("call", "ret") or not all(map(FIELD.fullmatch, names)) or "\n" in location:
            raise ValueError(f"{[event, *names, location]} cannot be written as fields of a line")
        shape = f"torch.Size({list(map(int, row['shape']))})"
        fields = [f"[{event}]", int(row["time_ns"]), shape, int(row["bytes"]), int(row["address"]), *names, location]
        lines.append("  ".join(map(str, fields)))
    write_text(path, "".join(f"{line}\n" for line in lines))
