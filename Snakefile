import logging
import shutil
import tempfile

from snakemake.exceptions import WorkflowError
from snakemake.script import PythonScript
from snakemake.utils import min_version

min_version("9.1")
# On a full disk, each message that Snakemake's log file cannot take would add a traceback.
logging.raiseExceptions = False
# Snakemake names the Python of a script without quotes: no job would start where .venv is below a folder with a space.
PythonScript._execute_cmd = lambda self, command, **names: super(PythonScript, self)._execute_cmd(
    command.replace("{py_exec}", "{py_exec:q}"), **names
)
# Snakemake copies the files included below to temporary ones, and would end without a remedy.
if (free := shutil.disk_usage(tempfile.gettempdir()).free) < 8 * 2**20:
    raise WorkflowError(
        f"{tempfile.gettempdir()}: no room for temporary files ({free:,} bytes free); "
        "free disk space there, or set TMPDIR to a folder with more"
    )


configfile: "config/config.yaml"


report: "workflow/report/workflow.rst"


include: "workflow/rules/log.smk"
include: "workflow/rules/common.smk"
include: "workflow/rules/datasets.smk"
include: "workflow/rules/cases.smk"
include: "workflow/rules/metric_sweep.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/targets.smk"


# Only where a GPU is to be recorded.
if RECORDING.parts:

    include: "workflow/rules/record.smk"


onstart:
    # With a limit of jobs in a time, Snakemake looks through all jobs again after that time, once for every look before:
    # more and more often, until it takes half a core. Its default, 100 jobs a second, limits nothing here.
    limit = workflow.scheduling_settings.max_jobs_per_timespan
    if limit and (limit.max_jobs, limit.timespan) == (100, 1):
        workflow.scheduler.job_rate_limiter = None
    # Jobs on this machine are forks of one process; in a cluster, each starts its own Python.
    if not workflow.non_local_exec:
        sys.path.append(str(ROOT / "workflow" / "scripts"))
        import fork_server

        fork_server.start()


rule all:
    """Everything that the configured datasets can answer, the paper's tables, the scorecard and the gallery."""
    default_target: True
    input:
        datasets=every_dataset(),
        cases=every_case_file("notebook.html"),
        tables=expand("results/tables/{study}.csv", study=STUDIES),
        gallery="results/index.html",
        scorecard="results/scorecard.html",
