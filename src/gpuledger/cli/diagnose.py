"""``gpuledger diagnose``: what Neutrino probed, what it did not and why, what it cost."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import click

from gpuledger.cli.terminal import json_option, print_json, print_table, say
from gpuledger.errors import InputError, InputWarning

if TYPE_CHECKING:
    from gpuledger.readers.neutrino import KernelInfo, ProcessLog, TraceDirectory


@click.command(
    short_help="What a Neutrino trace probed, what it did not, and why.",
    epilog="Example: gpuledger diagnose trace/Nov22_010203_4711",
)
@click.argument("folder", type=click.Path(path_type=Path))
@json_option
def diagnose(folder: Path, as_json: bool) -> None:
    """Say what a trace directory of Neutrino (FOLDER) probed, what it did not and why, and what that cost.

    It reads event.log, kernel/*/process.log and kernel/*/kernel.info. The exit status is 1 if a kernel was not
    probed or a launch left no trace.
    """
    from gpuledger.readers.neutrino import open_trace_directory

    directory = open_trace_directory(folder)
    report = examine(directory)
    if as_json:
        print_json(report)
    else:
        _print(report)
    sys.exit(1 if report["problems"] else 0)


def examine(directory: TraceDirectory) -> dict[str, Any]:
    """Return what happened in a trace directory.

    Returns
    -------
    dict
        ``folder``, ``command``, ``version``, ``launches``, ``traces``, ``kernels`` (one dict each: ``kernel``,
        ``probed``, ``filtered``, ``reason``, ``maps``, ``launches``, ``traces``, ``missing_traces``, ``failed``,
        ``fallbacks``, ``probe_bytes``, ``additional_registers``, ``additional_spill_bytes``, times in ms summed over
        launches, ``slowdown_ratio``) and ``problems`` (list of str).
    """
    problems: list[str] = []

    def readable(holder: object, name: str) -> Any:
        try:
            return getattr(holder, name)
        except InputError as error:  # a damaged file is a finding, not the end
            problems.append(f"{error.file}: {error.problem}")
            return None

    log = readable(directory, "event_log")
    if log is None and not problems:
        problems.append("event.log is missing: what was launched is unknown")
    launches = None if log is None else log.launches
    kernels = [_kernel(readable(kernel, "log"), readable(kernel, "info")) for kernel in directory.kernels]
    by_folder = {} if log is None else {PurePosixPath(place).name: name for name, place in log.folders.items()}
    for kernel, entry in zip(directory.kernels, kernels, strict=True):
        entry["kernel"] = entry["kernel"] or by_folder.get(kernel.folder.name, kernel.folder.name)
        if launches is not None:
            names = {entry["kernel"], by_folder.get(kernel.folder.name)}
            entry |= _cost(launches[launches["kernel"].isin(names)], directory)
        if not entry["probed"] and not entry["filtered"]:
            problems.append(f"{entry['kernel']} was not probed: {entry['reason']}")
        for count, what in ((entry.get("failed"), "failed"), (entry.get("fallbacks"), "ran without probe instead")):
            if count:
                problems.append(f"{entry['kernel']}: {count} of {entry['launches']} launches {what}")
        if entry.get("missing_traces"):
            problems.append(f"{entry['kernel']}: {entry['missing_traces']} traces are in the log but not in result/")
    if launches is not None:
        unknown = launches[~launches["kernel"].isin({entry["kernel"] for entry in kernels})]
        if len(unknown):
            names = ", ".join(sorted({name or "unnamed kernels" for name in unknown["kernel"]})[:5])
            problems.append(f"{len(unknown)} launches of kernels without a folder in kernel/: {names}")
        unfinished = int((launches["outcome"] == "").sum())
        if unfinished:
            problems.append(f"{unfinished} launches have no outcome: the log ends before, or the process crashed")
    problems += _trace_problems(directory)
    return {
        "folder": str(directory.folder),
        "command": "" if log is None else log.command.strip(),
        "version": None if log is None else log.version,
        "launches": None if launches is None else len(launches),
        "traces": len(directory.results),
        "kernels": kernels,
        "problems": problems,
    }


def _kernel(log: ProcessLog | None, info: KernelInfo | None) -> dict[str, Any]:
    built = log is not None and "probed" in log.builds
    entry: dict[str, Any] = {
        "kernel": (info.kernel if info else "") or (log.kernel if log else ""),
        "probed": info is not None,
        "filtered": bool(log and log.skipped),
        "reason": "",
        "maps": [f"{level}: {size if size is not None else 'counted'} bytes" for level, size in info.maps]
        if info
        else [],
        "additional_registers": log.additional_registers if log else None,
        "additional_spill_bytes": log.additional_spill_bytes if log else None,
    }
    if info is None:
        if log is None:
            entry["reason"] = "the probe engine left neither process.log nor kernel.info"
        elif log.skipped:
            entry["reason"] = "left out by the filter"
        elif log.failure:
            entry["reason"] = log.failure
        elif not log.objdump:
            entry["reason"] = "no code of it was found (is it only there as SASS, without PTX?)"
        else:
            entry["reason"] = "built, but no kernel.info" if built else "ptxas did not build the probed code"
    return entry


def _cost(launches, directory: TraceDirectory) -> dict[str, Any]:
    def total(column: str) -> float | None:
        return float(launches[column].sum()) if launches[column].notna().any() else None

    saved = [PurePosixPath(name).name for name in launches["file"] if name]
    there = {path.name for path in directory.results}
    kernel_ms, original_ms = total("kernel_ms"), total("original_ms")
    return {
        "launches": len(launches),
        "traces": sum(name in there for name in saved),
        "missing_traces": sum(name not in there for name in saved),
        "failed": int((launches["outcome"] == "failed").sum()),
        "fallbacks": int((launches["outcome"] == "backup").sum()),
        "probe_bytes": None if launches["probe_bytes"].isna().all() else int(launches["probe_bytes"].max()),
        **{f"{part}_ms": total(f"{part}_ms") for part in ("prologue", "kernel", "epilogue", "original")},
        "slowdown_ratio": kernel_ms / original_ms if kernel_ms and original_ms else None,
    }


def _trace_problems(directory: TraceDirectory) -> list[str]:
    problems = []
    for path in directory.results:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", InputWarning)
            try:
                directory.open(path)
            except InputError as error:
                problems.append(f"{path.name}: {error.problem}")
        problems += [f"{path.name}: {warning.message}" for warning in caught]
    return problems


def _print(report: dict[str, Any]) -> None:
    from gpuledger.ledger.case_result import brief

    kernels = report["kernels"]
    probed = sum(entry["probed"] for entry in kernels)
    launches = "an unknown number of" if report["launches"] is None else f"{report['launches']:,}"
    say(f"{probed} of {len(kernels)} kernels probed; {launches} launches, {report['traces']:,} traces")
    if report["command"]:
        say(f"command: {report['command']}")
    say()

    def number(value: float | None) -> str:
        return "" if value is None else brief(value, 3)

    headers = ["kernel", "probed", "launches", "traces", "probe memory (kB)", "kernel (ms)", "prologue + epilogue (ms)"]
    headers += ["slowdown (×)", "+ registers", "+ spill (bytes)", "why not"]
    rows = []
    for entry in kernels:
        around = [entry.get(f"{part}_ms") for part in ("prologue", "epilogue")]
        around = None if None in around else sum(around)
        memory = entry.get("probe_bytes")
        numbers = [entry.get("launches"), entry.get("traces"), None if memory is None else memory / 1000]
        numbers += [entry.get("kernel_ms"), around, entry.get("slowdown_ratio")]
        numbers += [entry["additional_registers"], entry["additional_spill_bytes"]]
        rows.append([entry["kernel"], "yes" if entry["probed"] else "no", *map(number, numbers), entry["reason"]])
    print_table(headers, rows, right=range(2, 10), spare=headers[9:4:-1])
    for problem in report["problems"]:
        say(f"problem: {problem}")
