"""Reader of ``probe.toml``: what a probe saves, in the spellings of all releases.

Source: Neutrino trace format, as written by its probe compiler (tables ``[map.*]`` and ``[probe.*]``) and, before that,
by hand (one table for each probe, whose ``datamodel`` says what it saves).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gpuledger.errors import InputError
from gpuledger.readers.neutrino.lines import read_bytes
from gpuledger.readers.neutrino.records import Level

#: What the hand-written probes of the shipped tools call their fields, and what the compiled ones do.
NAMES = {"lstart": "start", "gstart": "start", "elapse": "elapsed", "smid": "cuid"}
REMEDY = "give the probe.toml of a trace directory"
SAVE = re.compile(r"\bSAVE\.(u64|u32)\s*\{([^}]*)\}")
COMMENT = re.compile(r"//[^\n]*")
FORMATS = {"u64": "<u8", "u32": "<u4"}
#: No slice of a thread is near this; larger ones are typing errors.
MAX_BYTES = 2**32


@dataclass(frozen=True)
class ProbeMap:
    """What one section of a trace holds.

    Attributes
    ----------
    name : str
    level : {"thread", "warp"}
        What saves one slice of records.
    record_bytes : int
        Bytes of one record.
    cap : int or None
        Records of a slice; None where the driver counts them before the launch.
    dtype : numpy.dtype or None
        Fields of a record in their order; None where the probe's text does not add up to `record_bytes`.
    """

    name: str
    level: Level
    record_bytes: int
    cap: int | None = 1
    dtype: np.dtype | None = None

    def fits(self, level: str, bytes_per_unit: int) -> bool:
        """Whether it can have saved slices of `bytes_per_unit` bytes at this level."""
        if self.cap is None:
            return level == self.level and bytes_per_unit % self.record_bytes == 0
        return level == self.level and bytes_per_unit == self.record_bytes * self.cap

    def describe(self) -> str:
        """Say how much it saves."""
        size = f"{self.record_bytes * self.cap}" if self.cap else f"a multiple of {self.record_bytes}"
        return f"{size} bytes for each {self.level}"


@dataclass(frozen=True)
class Snippet:
    """Code that a probe inserts.

    Attributes
    ----------
    name : str
    level : str
        "thread" or "warp"; empty where it is not said.
    positions : tuple of str
        Parts of the instructions that it is inserted at; ``kernel`` for entry and exit.
    before, after : str
        The text inserted.
    """

    name: str
    level: str
    positions: tuple[str, ...]
    before: str = ""
    after: str = ""


@dataclass(frozen=True)
class Probe:
    """A parsed ``probe.toml``.

    Attributes
    ----------
    kind : {"compiled", "written"}
        By the probe compiler, or by hand for the releases before it.
    maps : tuple of ProbeMap
        What is saved, in the order of the sections of a trace.
    snippets : tuple of Snippet
    callback : str
        Script that is run on every trace; may be empty.
    dynamic : bool
        Whether the driver counts records before the launch.
    registers : int or None
        Registers that the probe declares.
    path : Path
    """

    kind: Literal["compiled", "written"]
    maps: tuple[ProbeMap, ...]
    snippets: tuple[Snippet, ...] = ()
    callback: str = ""
    dynamic: bool = False
    registers: int | None = None
    path: Path = Path("probe.toml")


def read_probe(path: str | Path) -> Probe:
    """Read a ``probe.toml`` of either kind.

    Parameters
    ----------
    path : path

    Returns
    -------
    Probe

    Raises
    ------
    InputError
        The file is missing, not TOML or not a probe; the place is the line or the key.
    """
    path = Path(path)
    try:
        content = tomllib.loads(read_bytes(path, REMEDY).decode("utf-8", "ignore").removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError as error:
        text = str(error)
        found = re.search(r"\(at line (\d+), column \d+\)", text)
        place = f"line {found[1]}" if found else "last line"
        raise InputError(path, place, f"not TOML: {text.split(' (at ')[0]}", REMEDY) from None
    except RecursionError:
        raise InputError(path, "", "not TOML: nested too deeply", REMEDY) from None
    except ValueError as error:  # an integer of more digits than Python converts, a date that is none
        raise InputError(path, "", f"not TOML: {error}", REMEDY) from None
    if "map" in content or "probe" in content:
        return _compiled(path, content)
    return _written(path, content)


def _compiled(path: Path, content: Mapping[str, Any]) -> Probe:
    maps = tuple(
        _compiled_map(path, name, _table(path, entry, f"map.{name}"))
        for name, entry in _table(path, content.get("map", {}), "map").items()
    )
    snippets = tuple(
        _snippet(path, f"probe.{name}", name, _table(path, entry, f"probe.{name}"))
        for name, entry in _table(path, content.get("probe", {}), "probe").items()
    )
    callback = _text(path, content, "", "CALLBACK", "callback")
    registers = content.get("regs")
    return Probe(
        "compiled",
        maps,
        snippets,
        callback,
        any(entry.cap is None for entry in maps),
        None if registers is None else _integer(path, registers, "regs", 0),
        path,
    )


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
        raise InputError(path, "", "no table has a position, and there is no [map] or [probe]: not a probe", REMEDY)
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
    snippets = tuple(_snippet(path, name, name, entry) for name, entry in tables.items())
    callback = _text(path, content, "", "analyze_hook", "callback")
    return Probe("written", tuple(maps), snippets, callback, any(entry.cap is None for entry in maps), None, path)


def _snippet(path: Path, key: str, name: str, entry: Mapping[str, Any]) -> Snippet:
    position = next((entry[word] for word in ("pos", "position") if word in entry), "")
    parts = position if isinstance(position, list) else str(position).split(":")
    positions = tuple(text for part in parts if (text := str(part).strip()))
    level = entry.get("level") or str(entry.get("datamodel", "")).partition(":")[0]
    return Snippet(
        name,
        _level(path, level, f"{key}.level") if level else "",
        positions,
        _text(path, entry, key, "before"),
        _text(path, entry, key, "after"),
    )


def _record(fields: list[tuple[str, str]]) -> np.dtype | None:
    # The same register may be saved twice; a dtype's fields have different names.
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


def _text(path: Path, entry: Mapping[str, Any], key: str, *names: str) -> str:
    name = next((name for name in names if name in entry), names[0])
    value = entry.get(name, "")
    if not isinstance(value, str):
        raise _wrong(path, f"{key}.{name}".lstrip("."), value, "a text")
    return value


def _level(path: Path, value: Any, key: str) -> Level:
    if value not in ("thread", "warp"):
        raise _wrong(path, key, value, "thread or warp")
    return value


def _integer(path: Path, value: Any, key: str, least: int = 1) -> int:
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value.strip()):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**63:
        raise _wrong(path, key, value, f"a whole number of at least {least}")
    return value


def _wrong(path: Path, key: str, value: Any, expected: str) -> InputError:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else shown[:57] + "…"
    return InputError(path, f"key {key}", f"{shown} is not {expected}", "correct it as the probe was run")
