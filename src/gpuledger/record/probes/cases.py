"""The launches that are recorded with probes, by study of the Neutrino artifact."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from gpuledger.files import write_text
from gpuledger.record.probes.launch import Launched, Runner
from gpuledger.record.probes.traces import STEM, write_directory
from gpuledger.record.probes.workloads import ProbeWorkload, attention, fill, gemm

#: Probes whose costs are compared.
COMPARED = ("block_sched", "gmem_bytes", "tensorop_count", "program_progress", "dmat")
#: Launches per timing, of which the median counts.
REPEATS = 11


@dataclass(frozen=True)
class Sizes:
    """Sizes of the workloads. The defaults take minutes on a data-centre GPU and 8 GiB of its memory."""

    zeros: int = 4096  # rows and columns of the tensor that is filled
    gemm: int = 4096  # size of the GEMM whose warps are timed
    compared_gemm: int = 2048  # size of the GEMM that is run with every probe; all its accesses are saved
    #: Sequence lengths of attention for warp times, for progress and for accesses.
    tokens: int = 4096
    progress_tokens: int = 2048
    accessed_tokens: int = 512
    #: Sequence lengths and batches of attention for the memory of probes; a batch has 8 heads.
    memory_tokens: tuple[int, ...] = (1024, 2048)
    batches: tuple[int, ...] = (1, 4)


def heads_for(sms: int, tokens: int, blocks_per_sm: int, waves: float) -> int:
    """Number of heads with which attention fills `sms` SMs with `blocks_per_sm` blocks for about `waves` waves."""
    return max(1, ceil(sms * blocks_per_sm * waves / (tokens // 64)))


def record_warp_scheduling(folder: Path, runner: Runner, sizes: Sizes) -> dict[str, dict]:
    """Warp times of attention and GEMM with one and with two blocks per SM (OSDI 2025, Fig. 14 and 17)."""
    cases = {}
    for case, make, name, blocks in (
        ("fig13a", attention, "FlashAttention-2 (own kernel)", 1),
        ("fig13b", attention, "FlashAttention-2 (own kernel)", 2),
        ("fig17a", gemm, f"GEMM {sizes.gemm}³ (own kernel)", 1),
        ("fig17b", gemm, f"GEMM {sizes.gemm}³ (own kernel)", 2),
    ):
        shape: tuple[int, ...] = (sizes.gemm,)
        if make is attention:
            shape = (heads_for(runner.device.sms, sizes.tokens, 2, 8), sizes.tokens)
        workload = make(*shape, blocks_per_sm=blocks)
        trace = _keep(folder, "warp_scheduling", case, runner.run(workload, "block_sched"))
        cases[case] = {"trace": trace, "kernel": name, "blocks": "exclusive" if blocks == 1 else "shared"}
    return cases


def record_progress(folder: Path, runner: Runner, sizes: Sizes) -> dict[str, dict]:
    """Loop progress of attention blocks while their neighbours start and end (OSDI 2025, Fig. 14C and D)."""
    heads = heads_for(runner.device.sms, sizes.progress_tokens, 2, 2.5)
    workload = attention(heads, sizes.progress_tokens, blocks_per_sm=2)
    launched = runner.run(workload, "timeline")
    case = {
        "progress": _keep(folder, "warp_scheduling", "fig13cd", launched, tool="warp_progress"),
        "trace": _keep(folder, "warp_scheduling", "fig13cd_blocks", launched, tool="block_sched"),
        "flop_per_iteration": workload.flop_per_iteration,
        "clock_mhz": round(launched.clock_mhz, 1),
        "kernel": "FlashAttention-2 (own kernel)",
        "blocks": "shared",
    }
    return {"fig13cd": case}


def record_dmat(folder: Path, runner: Runner, sizes: Sizes) -> dict[str, dict]:
    """Page accesses of attention over time, with one and with two blocks per SM (OSDI 2025, Fig. 1 and 11a)."""
    cases = {}
    for case, blocks, words in (("fig1", 1, "exclusive"), ("fig10a", 2, "shared")):
        workload = attention(
            heads_for(runner.device.sms, sizes.accessed_tokens, 1, 3), sizes.accessed_tokens, blocks_per_sm=blocks
        )
        trace = _keep(folder, "dmat", case, runner.run(workload, "dmat"), "dmat")
        place = f"dmat/{case}"
        cases[case] = {
            "trace": trace,
            "event_log": f"{place}/event.log",
            "tensor_trace": f"{place}/tensor.trace",
            "kernel": f"FlashAttention-2 (own kernel), {words} blocks",
        }
    return cases


def record_overhead(folder: Path, runner: Runner, sizes: Sizes) -> dict[str, dict]:
    """Time and register overhead of probes (OSDI 2025, Table 3)."""
    root = folder / "kernel_overhead"
    for group, workload in compared(runner, sizes).items():
        for probe in COMPARED:
            if probe == "program_progress" and not workload.flop_per_iteration:
                continue  # without a loop, the kernel with this probe is the plain kernel
            launched = runner.run(workload, probe, REPEATS)
            write_directory(root / group / workload.name / probe / "trace", launched, trace="", benchmark=True)
    return {"table2": {"traces": root.name}}


def record_memory(folder: Path, runner: Runner, sizes: Sizes) -> dict[str, dict]:
    """Memory of probes relative to the tensors of attention (OSDI 2025, Fig. 12)."""
    root = folder / "memory_usage"
    for tokens in sizes.memory_tokens:
        for batch in sizes.batches:
            workload = attention(8 * batch, tokens)
            used = sum(tensor.size_bytes for tensor in workload.tensors)
            for probe in COMPARED:
                place = root / f"{workload.name}-bs{batch}" / probe
                write_directory(place / "trace", runner.run(workload, probe), trace="")
                write_text(place / "stdout.log", f"max memory: {used}\n")
    return {"fig11": {"traces": root.name}}


def compared(runner: Runner, sizes: Sizes) -> dict[str, ProbeWorkload]:
    """Return the workloads that are run with every probe, by group."""
    heads = heads_for(runner.device.sms, sizes.accessed_tokens, 2, 3)
    return {
        "memory": fill(sizes.zeros, sizes.zeros),
        "gemm": gemm(sizes.compared_gemm),
        "attention": attention(heads, sizes.accessed_tokens),
    }


#: Notes for readers, by path in the dataset.
NOTES = {
    "kernel_overhead": (
        "The probes are compiled together with their kernels, unlike binary probes, which are added to the compiled "
        "kernel. The compiler optimises both at once, so extra registers can be negative. Times include the launch of "
        "an empty kernel (empty_launch_ns in recording.json)."
    )
}
#: Records cases of a study into a folder, and returns them as in ``dataset.yaml``.
RecordCases = Callable[[Path, Any, Sizes], dict[str, dict]]
#: By step, the study and the function that records its cases.
STEPS: dict[str, tuple[str, RecordCases]] = {
    "warp_scheduling": ("warp_scheduling", record_warp_scheduling),
    "progress": ("warp_scheduling", record_progress),
    "dmat": ("dmat", record_dmat),
    "kernel_overhead": ("kernel_overhead", record_overhead),
    "memory_usage": ("memory_usage", record_memory),
}


def _keep(folder: Path, study: str, case: str, launched: Launched, trace: str = "bin", tool: str = "") -> str:
    """Write a trace directory; return the path of the trace in the dataset."""
    write_directory(folder / study / case, launched, tool, trace=trace)
    return f"{study}/{case}/result/{STEM}.{trace}"
