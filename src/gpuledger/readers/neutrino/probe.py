"""Reader of ``probe.toml``: the maps of a probe, as spelled by any release.

Source: Neutrino trace format, as written by its probe compiler (tables ``[map.*]`` and ``[probe.*]``) or, in earlier
releases, by hand (one table per probe, whose ``datamodel`` says what it saves).
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpuledger.errors import InputError
from gpuledger.readers.neutrino.lines import read_bytes
from gpuledger.readers.neutrino.records import Level, ProbeMap

#: Field names in hand-written probes of the shipped tools, and in compiled ones.
NAMES = {"lstart": "start", "gstart": "start", "elapse": "elapsed", "smid": "cuid"}
REMEDY = "give the probe.toml of a trace directory"
#: A key of more than 64 parts: time and memory grow with the square of their number.
_DEEP_KEY = re.compile(r"(?<![\w\"'-])(?:[\w\"'-]++[ \t]*+\.[ \t]*+){64}")
SAVE = re.compile(r"\bSAVE\.(u64|u32)\s*\{([^}]*)\}")
COMMENT = re.compile(r"//[^\n]*")
FORMATS = {"u64": "<u8", "u32": "<u4"}
#: No slice is nearly as large; larger sizes are typing errors.
MAX_BYTES = 2**32


@dataclass(frozen=True)
class Probe:
    """A parsed ``probe.toml``."""

    maps: tuple[ProbeMap, ...]  # in the order of a trace's sections
    path: Path = Path("probe.toml")


def read_probe(path: str | Path) -> Probe:
    """Read a ``probe.toml`` of either kind."""
    path = Path(path)
    text = read_bytes(path, REMEDY).decode("utf-8", "ignore").removeprefix("\ufeff")
    if _DEEP_KEY.search(text):
        raise InputError(path, "", "not TOML: nested too deeply", REMEDY)
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"\(at line (\d+), column \d+\)", str(error))
        place = f"line {found[1]}" if found else "last line"
        raise InputError(path, place, f"not TOML: {str(error).split(' (at ')[0]}", REMEDY) from None
    except RecursionError:
        raise InputError(path, "", "not TOML: nested too deeply", REMEDY) from None
    except ValueError as error:  # too many digits for an integer, an impossible date
        raise InputError(path, "", f"not TOML: {error}", REMEDY) from None
    if "map" in content or "probe" in content:
        return _compiled(path, content)
    return _written(path, content)


def _compiled(path: Path, content: Mapping[str, Any]) -> Probe:
    maps = _table(path, content.get("map", {}), "map").items()
    return Probe(tuple(_compiled_map(path, name, _table(path, entry, f"map.{name}")) for name, entry in maps), path)


def _compiled_map(path: Path, name: str, entry: Mapping[str, Any]) -> ProbeMap:
    key = f"map.{name}"
    level = _level(path, entry.get("level"), f"{key}.level")
    cap = entry.get("cap", 1)
    cap = None if cap == "dynamic" else _integer(path, cap, f"{key}.cap")
    spelled = next((word for word in ("regs", "data", "register", "registers") if word in entry), None)
    fields = []
    for field, kind in _table(path, entry.get(spelled, {}), f"{key}.{spelled}").items():
        kind = kind[0] if isinstance(kind, list) and kind else kind
        if not isinstance(kind, str) or kind not in FORMATS:
            raise _wrong(path, f"{key}.{spelled}.{field}", kind, "u64 or u32")
        fields.append((field, FORMATS[kind]))
    dtype = _record(fields)
    size = entry.get("size", dtype.itemsize if dtype else None)
    size = _integer(path, size, f"{key}.size")
    return _checked(path, key, ProbeMap(name, level, size, cap, dtype if dtype and dtype.itemsize == size else None))


def _written(path: Path, content: Mapping[str, Any]) -> Probe:
    tables = {name: entry for name, entry in content.items() if isinstance(entry, dict)}
    if not any("position" in entry for entry in tables.values()):
        raise InputError(path, "", "not a probe: no [map], no [probe], and no table with a position", REMEDY)
    maps = []
    for name, entry in tables.items():
        if "datamodel" not in entry:
            continue
        text = _text(path, entry, name, "datamodel")
        level, *numbers = (part.strip() for part in text.split(":"))
        key = f"{name}.datamodel"
        if len(numbers) not in (1, 2):
            raise _wrong(path, key, text, "level:bytes or level:bytes:records")
        size = _integer(path, numbers[0], key)
        last = numbers[1] if len(numbers) == 2 else "1"
        cap = None if last in ("count", "dynamic") else _integer(path, last, key)
        code = "\n".join(_text(path, entry, name, part) for part in ("before", "after"))
        fields = [
            (operand.strip().lstrip("%").lower() or "value", FORMATS[kind])
            for kind, operands in SAVE.findall(COMMENT.sub("", code))
            for operand in operands.split(",")
        ]
        dtype = _record([(NAMES.get(field, field), kind) for field, kind in fields])
        dtype = dtype if dtype and dtype.itemsize == size else None
        maps.append(_checked(path, key, ProbeMap(name, _level(path, level, key), size, cap, dtype)))
    return Probe(tuple(maps), path)


def _record(fields: list[tuple[str, str]]) -> np.dtype | None:
    # A register may be saved twice, but the fields of a dtype need different names.
    names: list[str] = []
    for name, _ in fields:
        names.append(name if name not in names else f"{name}_{len(names)}")
    if len(set(names)) != len(names):
        names = [f"field_{index}" for index in range(len(names))]
    return np.dtype([(name, kind) for name, (_, kind) in zip(names, fields, strict=True)]) if fields else None


def _checked(path: Path, key: str, entry: ProbeMap) -> ProbeMap:
    if entry.record_bytes * (entry.cap or 1) > MAX_BYTES:
        raise _wrong(path, key, entry.describe(), f"at most {MAX_BYTES} bytes")
    return entry


def _table(path: Path, value: Any, key: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(path, key, value, "a table")
    return value


def _text(path: Path, entry: Mapping[str, Any], key: str, name: str) -> str:
    value = entry.get(name, "")
    if not isinstance(value, str):
        raise _wrong(path, f"{key}.{name}", value, "a string")
    return value


def _level(path: Path, value: Any, key: str) -> Level:
    if value not in ("thread", "warp"):
        raise _wrong(path, key, value, "thread or warp")
    return value


def _integer(path: Path, value: Any, key: str) -> int:
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value.strip()):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**63:
        raise _wrong(path, key, value, "an integer of at least 1")
    return value


def _wrong(path: Path, key: str, value: Any, expected: str) -> InputError:
    try:
        shown = repr(value)
    except ValueError:  # Python writes no integers of thousands of digits
        shown = "a number of thousands of digits"
    shown = shown if len(shown) <= 60 else shown[:57] + "…"
    return InputError(path, f"key {key}", f"{shown} is not {expected}", "restore the file that the probe was run with")
