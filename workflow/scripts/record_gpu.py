"""Record what this machine's GPU can answer; what is recorded already stays."""

from pathlib import Path

from gpuledger import logs
from gpuledger.record.profiler import Control
from gpuledger.record.recording import Recording
from gpuledger.record.run import record_parts

with logs.to(snakemake.log[0]):
    settings = snakemake.params.settings
    recording = Recording(Path(snakemake.output.dataset).parent, kind="local")
    failed = record_parts(
        recording,
        snakemake.params.parts,
        python=settings.get("python"),
        control=Control(clock=settings.get("clock_control", "none"), cache=settings.get("cache_control", "all")),
        keep_going=snakemake.config["gpu"] == "auto",
    )
    if not recording.parts:
        raise next(iter(failed.values()))
