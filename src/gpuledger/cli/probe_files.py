"""Files that Neutrino leaves behind: what they are, and which studies can use them."""

from gpuledger.cli.found import Found

#: Files of a trace's folder beside its results.
PARTS = {"event.log", "process.log", "kernel.info", "probe.toml", "tensor.trace"}


def trace(found: Found) -> None:
    """Say which probe may have written a trace."""
    from gpuledger.readers.neutrino import TOOLS, open_trace

    found.format = "Neutrino trace"
    opened = open_trace(found.path)
    found.format = f"Neutrino trace {opened.version}"
    grid, block = ("×".join(map(str, size)) for size in (opened.grid, opened.block))
    sections = ", ".join(f"{part.bytes_per_unit} bytes a {part.level}" for part in opened.sections)
    found.content = f"grid {grid}, block {block}, {found.size}: {sections}"
    part = opened.sections[0] if opened.sections else None
    fitting = [tool for tool, about in TOOLS.items() if part and about.fits(part.level, part.bytes_per_unit)]
    studies = {"block_sched": ("block_scheduling", "warp_scheduling"), "dmat": ("dmat",)}
    tool = next((tool for tool in studies if tool in fitting), "")
    found.cases = {study: {"trace": found.path.name} for study in studies.get(tool, ())}


def dmat(found: Found, head: bytes) -> None:
    """Check the header of page accesses against the file's size."""
    found.format = "page accesses (.dmat)"
    size = found.path.stat().st_size
    if size < 16:
        found.problems.append("too few bytes for a header")
        return
    pages, clocks = (int.from_bytes(head[at : at + 8], "little") for at in (0, 8))
    if 8 * pages + 28 * clocks > size - 16:
        found.problems.append(
            f"{pages:,} pages and {clocks:,} clocks do not fit into {size:,} bytes: cut short, or no .dmat"
        )
        return
    found.content = f"{pages:,} pages, {clocks:,} clocks"
    found.cases["dmat"] = {"trace": found.path.name}


def part_of_trace(found: Found) -> None:
    """Read one of `PARTS`."""
    from gpuledger.readers import neutrino

    found.format = f"Neutrino {found.path.name}"
    if found.path.name == "event.log":
        found.content = f"{len(neutrino.read_event_log(found.path).launches):,} launches"
    elif found.path.name == "process.log":
        log = neutrino.read_process_log(found.path)
        found.content = log.kernel
        found.problems += [log.failure] if log.failure else []
    elif found.path.name == "kernel.info":
        found.content = neutrino.read_kernel_info(found.path).kernel
    elif found.path.name == "probe.toml":
        found.content = f"{len(neutrino.read_probe(found.path).maps)} maps"
    else:
        found.content = f"{len(neutrino.read_tensor_trace(found.path)):,} tensors"
