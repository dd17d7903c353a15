"""Make results/benchmarks/index.html of the tables that the benchmarks beside it wrote."""

import html

import matplotlib.pyplot as plt
import pandas as pd
from measure import RESULTS

from gpuledger import files
from gpuledger.ledger import figures, tables

PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>gpuledger: benchmarks</title>
<style>body {{ font: 15px sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }}
td, th {{ padding: .2em .8em }} img {{ max-width: 100% }}</style>
<h1>Benchmarks</h1><p>Made by <code>make bench</code> on this machine. An import unit is the wall time of a fresh
process that imports numpy, pandas, matplotlib and pyarrow; it makes machines comparable.</p>
{parts}</html>
"""
ABOUT = {
    "inputs": "Throughput and memory against size. <i>sum</i> is one numpy sum over the mapped file, the machine's "
    "limit; <i>script</i> is the algorithm of the traces' own scripts (Neutrino, OSDI 2025), a record at a time in "
    "plain Python.",
    "workflow": "The pipeline on two cores. The critical path is the longest chain of jobs that wait for one another; "
    "work is the time of all jobs.",
    "rules": "Time of each rule in the cold default target.",
    "model_times": "From configurations and shapes to kernels and times. The limit is the machine's, where there is "
    "one: the parsing of the same JSON alone. Wanted is what was set as a goal.",
    "series": "Time to find the laws of series of 5 to 9 sizes, the compiled loops loaded.",
    "laws": "How often the law of a drawn series is named, and the medians of the law's error at its own points "
    "(SMAPE) and at twice the largest size, beside Extra-P 4.2.5 where it could be run.",
}
FORMATS = {"bytes": "{:,}", "bytes_per_s": "{:,.0f}", "memory_bytes": "{:,}", "items": "{:,}", "items_per_s": "{:,.0f}"}


def draw_inputs(frame: pd.DataFrame) -> None:
    """Draw throughput and memory against size, as inputs.svg."""
    figures.use_style()
    figure, (speed, memory) = plt.subplots(1, 2, figsize=(7, 3.2))
    for (kind, what), own in frame.groupby(["input", "what"], sort=False):
        if not what.endswith("script"):
            style = {"marker": "o", "linestyle": ":" if what == "sum" else "-", "label": f"{kind}: {what}"}
            speed.plot(own["bytes"] / 2**20, own["bytes_per_s"] / 1e6, **style)
            memory.plot(own["bytes"] / 2**20, own["memory_bytes"] / 2**20, **style)
    for axes, label in ((speed, "throughput (MB/s)"), (memory, "peak memory (MiB)")):
        axes.set(xscale="log", yscale="log", xlabel="size of the input (MiB)", ylabel=label)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter("")
    figure.legend(*speed.get_legend_handles_labels(), loc="outside lower left", ncols=3)
    figure.savefig(RESULTS / "inputs.svg")


def main() -> None:
    parts = []
    for name, about in ABOUT.items():
        if (file := RESULTS / f"{name}.csv").is_file():
            frame = pd.read_csv(file)
            parts.append(f"<h2>{html.escape(name.capitalize().replace('_', ' '))}</h2><p>{about}</p>")
            if name == "inputs":
                draw_inputs(frame)
                parts.append('<img src="inputs.svg" alt="Throughput and peak memory against the size of the input">')
            parts.append(tables.show(frame, formats=FORMATS).to_html())
            parts.append(f'<p><a href="{name}.csv">{name}.csv</a></p>')
    files.write_text(RESULTS / "index.html", PAGE.format(parts="\n".join(parts)))
    print(RESULTS / "index.html")


if __name__ == "__main__":
    main()
