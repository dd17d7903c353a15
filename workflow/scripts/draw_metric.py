"""One page for one metric of a sweep."""

import logging
from pathlib import Path

from gpuledger import logs
from gpuledger.ledger import figures
from gpuledger.ledger.case_result import CaseResult
from gpuledger.studies.metric_sweep import figures as drawing

with logs.to(snakemake.log[0]):
    # Which glyphs of a font go into a PDF is nobody's concern.
    logging.getLogger("fontTools").setLevel(logging.WARNING)
    figures.use_style()
    folder = Path(snakemake.output.figure_pdf).parent
    result = CaseResult.read(folder)
    figure = drawing.draw_metric(result, snakemake.wildcards.metric)
    figures.save(figure, result.provenance, folder, name=f"figure_{snakemake.wildcards.metric}")
