"""Draw one metric of a sweep: a panel for each class and variable."""

import fork_server

fork_server.hand_over("gpuledger.ledger.case_result", "gpuledger.studies.metric_sweep.figures")


from pathlib import Path

import matplotlib.pyplot as plt

from gpuledger import logs
from gpuledger.ledger import figures
from gpuledger.ledger.case_result import CaseResult
from gpuledger.studies.metric_sweep import Sweep
from gpuledger.studies.metric_sweep import figures as panels
from gpuledger.studies.metric_sweep import tables as study_tables

with logs.to(snakemake.log[0]):
    figures.use_style()
    folder = Path(snakemake.output.figure_pdf).parent
    result = CaseResult.read(folder)
    sweep = Sweep.from_frame(result.data)
    shown = panels.panels_of_metric(sweep, snakemake.wildcards.metric)
    metric = shown[0]["metric"].iloc[0]
    columns = min(3, len(shown))
    rows = -(-len(shown) // columns)
    size = (3.6 * columns, 3.2 * rows + 1.0)
    figure, grid = plt.subplots(2 * rows, columns, figsize=size, height_ratios=[0.5, 2.0] * rows, squeeze=False)
    headers, plots = list(grid[::2].flat), list(grid[1::2].flat)
    drawn = set()
    for panel, header, axes in zip(shown, headers, plots, strict=False):
        (looks,) = panels.choose_looks([panel])
        laws = study_tables.describe_laws(panel, sweep)
        panels.write_laws(header, panel["kernel_class"].iloc[0], laws, looks)
        drawn |= panels.draw_law(axes, panel, sweep, looks)
    for unused in headers[len(shown) :] + plots[len(shown) :]:
        unused.remove()
    figure.legend(handles=panels.legend_handles(drawn), loc="outside lower left", ncols=2 * columns)
    figures.headline(figure, f"{metric}: {study_tables.count_laws(sweep, metric)}")
    figures.save(figure, result.provenance, folder, name=f"figure_{snakemake.wildcards.metric}")
