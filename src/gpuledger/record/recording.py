"""The folder of a recording: written file by file, resumable, and a dataset as soon as one part is complete.

``recording.json`` states when, on what and with which tools every part was made, and the key of every file of a series:
a hash of everything that the file depends on. A file is up to date if it is present, unchanged, and has the current
key. ``dataset.yaml`` lists exactly the complete parts.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gpuledger import __version__, files
from gpuledger.errors import InputError

#: Limit for recordings in a repository.
MOST_BYTES = 20_000_000
MANIFEST = "recording.json"
#: A step is ended after this multiple of its planned time: if the time of the call is limited, and if it is not.
PATIENCE, PATIENCE_UNLIMITED = 2, 5
#: But not before (s): the plan is an estimate, and a short part is mostly the start of tools and their libraries.
LEAST_PATIENCE_S = 180.0
#: Cases as in dataset.yaml, by study and name.
Cases = Mapping[str, Mapping[str, Mapping[str, Any]]]


class OutOfTimeError(Exception):
    """Time is up; everything made so far is kept, and the next call resumes."""


def _is_point(point: Any) -> bool:
    return isinstance(point, dict) and {"key", "sha256", "about"} <= point.keys() and isinstance(point["about"], dict)


class Recording:
    """A folder of ``traces/`` that is being recorded.

    Parameters
    ----------
    kind : {"recorded", "local"}
        As in ``dataset.yaml``.
    seconds : float, optional
        Time limit of this call. A part only starts if its planned time still fits, or one that resumes if there is
        time for some of it; the first one always runs. A part that takes longer is ended; see :meth:`limit`.
    """

    def __init__(self, folder: str | Path, kind: str = "recorded", seconds: float | None = None):
        self.folder, self.kind = Path(folder), kind
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._worked, self._current, self._expected, self._least, self._begun = False, "", 0.0, 0.0, 0.0
        self._content: dict[str, Any] = {"parts": {}, "points": {}, "left_out": {}}
        with contextlib.suppress(OSError, ValueError, RecursionError):
            found = json.loads((self.folder / MANIFEST).read_text("utf-8"))
            if isinstance(found, dict) and all(isinstance(found.get(name), dict) for name in self._content):
                # A point that does not say what it is of is recorded again.
                points = {name: point for name, point in found["points"].items() if _is_point(point)}
                self._content = found | {"points": points}
        # By part that is not complete, the time (s) of earlier calls.
        spent = self._content.get("spent")
        known = isinstance(spent, dict) and all(isinstance(seconds, int | float) for seconds in spent.values())
        self._content["spent"] = spent if known else {}

    @property
    def parts(self) -> Mapping[str, Mapping[str, Any]]:
        """The complete parts and what is known about them."""
        return self._content["parts"]

    @property
    def left_out(self) -> Mapping[str, str]:
        """Why parts could not be recorded the last time, by part."""
        return self._content["left_out"]

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the folder against other processes that record into it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.folder, os.O_RDONLY)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                problem = "another process is recording into this folder"
                raise InputError(self.folder, "", problem, "wait for it to end") from None
            except OSError as error:
                if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
                    raise
            yield
        finally:
            os.close(lock)

    def check_time(self, seconds: float) -> None:
        """Raise OutOfTimeError if a step of `seconds` would exceed the time limit and it is not the first step."""
        if self._deadline is None or not self._worked:
            self._worked = True
        elif time.monotonic() + seconds > self._deadline:
            raise OutOfTimeError

    def is_over(self) -> bool:
        """Whether the time limit has passed."""
        return self._deadline is not None and time.monotonic() >= self._deadline

    def limit(self, planned: float) -> float:
        """Time (s) after which a step is ended: a multiple of the planned time, at most what is left."""
        patience = max(LEAST_PATIENCE_S, planned * (PATIENCE_UNLIMITED if self._deadline is None else PATIENCE))
        return patience if self._deadline is None else max(1.0, min(patience, self._deadline - time.monotonic()))

    def is_made(self, name: str, key: str) -> bool:
        """Whether the file is present, unchanged, and has this key."""
        known = self._content["points"].get(name, {})
        return known.get("key") == key and self.are_made({name: known["sha256"]})

    def are_made(self, sums: Mapping[str, str]) -> bool:
        """Whether the files, given with their SHA-256 sums, are present and unchanged."""
        paths = {self.folder / name: value for name, value in sums.items()}
        return all(path.is_file() and files.sha256(path) == value for path, value in paths.items())

    def make_all(
        self, keys: Mapping[str, str], write: Callable[[list[str], float], Mapping[str, Mapping[str, Any]]]
    ) -> dict[str, Mapping[str, Any]]:
        """Make the files of a series that are not up to date.

        Parameters
        ----------
        keys : mapping
            By path in the folder, its key; see :func:`key_of`.
        write : callable
            Gets paths and the time (s) that it may take; writes these files completely or raises, and returns what to
            remember about each. Files for which there was no time are missing in it.

        Returns
        -------
        dict
            By path, what `write` returned, now or when the file was made.

        Raises
        ------
        OutOfTimeError
            Files are missing; those that were made are kept.
        """
        waiting = [name for name, key in keys.items() if not self.is_made(name, key)]
        if waiting:
            planned = self._expected * len(waiting) / len(keys)
            self.check_time(min(planned, self._least))
            for name in waiting:
                self._content["points"].pop(name, None)
            self.withdraw()
            made = write(waiting, self.limit(planned))
            for name, about in made.items():
                sums = files.sha256(self.folder / name)
                self._content["points"][name] = {"key": keys[name], "sha256": sums, "about": dict(about)}
            self._save()
            if len(made) < len(waiting):
                raise OutOfTimeError
        return {name: self._content["points"][name]["about"] for name in keys}

    def begin(self, part: str, seconds: float = 0.0, least: float = 0.0) -> None:
        """Set the part that the following files belong to, the time (s) planned for it, and the least to start it."""
        self._current, self._expected, self._least, self._begun = part, seconds, least, time.monotonic()

    def pause(self) -> None:
        """Remember the time that went into the current part, with which another call goes on."""
        if self._current:
            self._content["spent"][self._current] = round(self._taken(self._current), 1)
            self._save()
        self._current = ""

    def _taken(self, part: str) -> float:
        """Time (s) that this call and earlier ones have spent on a part since it was complete."""
        now = time.monotonic() - self._begun if part == self._current else 0.0
        return self._content["spent"].get(part, 0.0) + now

    def withdraw(self) -> None:
        """Remove the current part from the dataset, before its files change."""
        if self._content["parts"].pop(self._current, None) is not None:
            self.write_dataset()
        else:
            self._save()

    def belong_to(self, device: Mapping[str, Any]) -> None:
        """Check that all parts are from this GPU; a local dataset starts over on another GPU."""
        others = [name for name, part in self.parts.items() if part["device"]["name"] != device["name"]]
        if others and self.kind != "local":
            problem = f"the folder holds a recording from {self.parts[others[0]]['device']['name']}"
            raise InputError(self.folder / MANIFEST, "", problem, f"record {device['name']} into another folder")
        for name in others:
            del self._content["parts"][name]

    def finish(self, part: str, cases: Cases, about: Mapping[str, Any], notes: Mapping[str, str]) -> None:
        """Register a complete part; if its cases did not change, what is known about it is kept.

        Parameters
        ----------
        cases : mapping
            Cases as in dataset.yaml, by study and name, with paths in the folder.
        about : mapping
            Provenance: ``date``, ``device``, ``tools``, ``control`` and whatever else is known.
        notes : mapping
            Notes for readers, by path of a case.
        """
        # Normalised as if read back from JSON.
        cases = json.loads(json.dumps(cases, sort_keys=True))
        if self.parts.get(part, {}).get("cases") != cases:
            more = {"cases": cases, "notes": dict(notes), "seconds": round(self._taken(part), 1)}
            self._content["parts"][part] = {**about, **more, "gpuledger": __version__}
        for of_before in ("left_out", "spent"):
            self._content[of_before].pop(part, None)
        self._current = ""
        self.write_dataset()

    def leave_out(self, part: str, reason: str) -> None:
        """Remember why a part could not be recorded."""
        if part == self._current:
            self.pause()
        self._content["left_out"][part] = reason
        self._save()

    def write_dataset(self) -> None:
        """Write recording.json and, if there are complete parts, dataset.yaml."""
        self._save()
        target = self.folder / "dataset.yaml"
        if not self.parts:
            target.unlink(missing_ok=True)
            return
        parts = [self.parts[name] for name in sorted(self.parts)]
        device = parts[0]["device"]
        studies: dict[str, dict] = {}
        notes: dict[str, dict] = {}
        for part in parts:
            for study, cases in part["cases"].items():
                studies.setdefault(study, {}).update(cases)
            notes |= {path: {"note": note} for path, note in part["notes"].items()}
        content = {
            "title": f"{'This machine' if self.kind == 'local' else 'Recorded'}: {device['name']}",
            "kind": self.kind,
            "device": {"name": device["name"], "compute_capability": device["compute_capability"]},
            "source": self._source(parts),
            "license": "CC0-1.0",
            **({"files": dict(sorted(notes.items()))} if notes else {}),
            "studies": {study: dict(sorted(studies[study].items())) for study in sorted(studies)},
        }
        try:
            import yaml

            text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)
        except ImportError:  # every JSON text is also YAML
            text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        head = f"# Written by gpuledger.record; the provenance of each part is in {MANIFEST}.\n"
        files.write_text(target, head + text)

    def size_bytes(self) -> int:
        """Total size of the folder's files (bytes)."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    def _source(self, parts: list[Mapping[str, Any]]) -> str:
        dates = sorted({part["date"] for part in parts})
        words = [f"gpuledger {__version__}, recorded {' to '.join(dict.fromkeys([dates[0], dates[-1]]))}"]
        drivers = sorted({part["device"]["driver"] for part in parts})
        words.append(f"driver {', '.join(drivers)}")
        for tool, name in (("ncu", "Nsight Compute"), ("torch", "PyTorch"), ("cuda", "CUDA"), ("nvrtc", "NVRTC")):
            if versions := sorted({str(part["tools"][tool]) for part in parts if part["tools"].get(tool)}):
                words.append(f"{name} {', '.join(versions)}")
        for what in ("clock", "cache"):
            if controls := sorted({part["control"][what] for part in parts if part.get("control")}):
                words.append(f"{what} control {', '.join(controls)}")
        return "; ".join(words)

    def _save(self) -> None:
        files.write_json(self.folder / MANIFEST, self._content)


@contextlib.contextmanager
def ending_after(seconds: float) -> Iterator[None]:
    """End this process if the block takes longer: nothing else ends a kernel that hangs, and other steps wait."""
    timer = threading.Timer(seconds, os._exit, (1,))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def read_state(path: Path, stamp: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the file of a step says below its ``stamp``; empty without a file, or with another stamp."""
    with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        content = json.loads(path.read_text("utf-8"))
        if content.pop("stamp") == stamp:
            return content
    return {}


def key_of(**what: Any) -> str:
    """Hash of everything that a file depends on, given as JSON values by name."""
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def hash_sources(paths: list[Path]) -> str:
    """Hash of the names and contents of the programs that make a file."""
    lines = [f"{path.name} {files.sha256(path)}\n" for path in sorted(paths)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()
