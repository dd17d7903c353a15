"""One page for one metric of a sweep."""

import logging
from pathlib import Path

from gpuledger import figures, logs
from gpuledger.metric_sweep import drawing
from gpuledger.reduced import Reduced

with logs.to(snakemake.log[0]):
    # Which glyphs of a font go into a PDF is nobody's concern.
    logging.getLogger("fontTools").setLevel(logging.WARNING)
    figures.use_style()
    folder = Path(snakemake.output.figure_pdf).parent
    reduced = Reduced.read(folder)
    figure = drawing.draw_metric(reduced, snakemake.wildcards.metric)
    figures.save(figure, reduced.provenance, folder, name=f"figure_{snakemake.wildcards.metric}")
