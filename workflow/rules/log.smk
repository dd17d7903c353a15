"""What a run says: one line for each result that is being made, and a summary at the end. It has no rules."""

import os
import re
import sys
import time
from difflib import get_close_matches
from pathlib import Path

from snakemake.logging import DefaultFormatter, logger
from snakemake.settings.enums import Quietness
from snakemake_interface_logger_plugins.common import LogEvent

#: Messages about the machinery, by their beginnings.
MACHINERY = (
    "Assuming unrestricted",
    "host: ",
    "Using shell:",
    "Building DAG of jobs",
    "Conda environments: ignored",
    "Select jobs to execute",
    "Execute ",
    "Complete log",
    "Elapsed time:",
    "Exiting because a job execution failed",
    "At least one job did not complete",
    "DAG of jobs will be updated",
    "Removing temporary output",
    "Would remove temporary output",
    "Reasons:",
    "Some jobs were triggered by provenance",
    "If you prefer that only modification time",
    "If you are sure that a change for a certain output",
    "Rules with provenance triggered jobs",
    "RuleException:\nCalledProcessError",
    "WorkflowError:\nAt least one job did not complete",
    "SLURM run ID:",
    "Cleaning up SLURM log files",
    "No SLURM account given",
    "No account was given",
    "Unable to guess SLURM account",
    "Trying to restart job",
)
MACHINERY_EVENTS = {
    LogEvent.WORKFLOW_STARTED,
    LogEvent.RESOURCES_INFO,
    LogEvent.JOB_FINISHED,
    LogEvent.GROUP_INFO,
    LogEvent.SHELLCMD,
}


class Progress(DefaultFormatter):
    """Formats a run for people: what is being made, which of how many, how long the rest will take."""

    def __init__(self, original, dryrun):
        super().__init__(original.quiet, original.show_failed_logs)
        self.dryrun, self.began = dryrun, None
        self.started, self.done, self.total, self.unseen = 0, 0, 0, 0
        self.messages, self.failed = {}, []
        self.cluster_logs, self.lines = [], set()

    def says(self, record):
        """A filter: take note of what happens, and leave out what only concerns the machinery."""
        event = getattr(record, "event", None)
        if event == LogEvent.RUN_INFO:
            self.unseen = record.stats.get("all", 0)
            self.total = record.stats["total"] - self.unseen
        elif event == LogEvent.PROGRESS:
            self.done, self.total = record.done, record.total - self.unseen
            return False
        if event == LogEvent.GROUP_ERROR:
            # Each of its jobs follows with an event of its own.
            self.cluster_logs = record.aux_logs
            return False
        if event == LogEvent.JOB_INFO and record.rule_name == "all":
            return False
        return event not in MACHINERY_EVENTS and not str(record.msg).startswith(MACHINERY)

    def format(self, record):
        """One line for what cannot be planned: a wrong name of a target, of a dataset in it, or a wrong setting."""
        kind, said = getattr(record, "exception", ""), str(record.msg)
        if kind == "MissingRuleException" and (wanted := re.search(r"No rule\sto produce (.+?) \(if", said)):
            return f"{wanted[1]}: there is no such target; {nearest_target(wanted[1])}"
        if kind == "InputFunctionException" and (line := re.search(r"WorkflowError:\s+(.+)", said)):
            return line[1]
        if kind == "WorkflowError" and (line := re.match(r"WorkflowError in file .+\n(.+)", said)):
            return line[1]
        return super().format(record)

    def format_run_info(self, msg):
        kinds = {rule: count for rule, count in msg["stats"].items() if rule not in ("total", "all")}
        drawn = sum(count for rule, count in kinds.items() if rule.startswith("run_"))
        reduced = kinds.get("reduce_case", 0)
        cases = "case" if reduced == 1 else "cases"
        parts = kinds.get("reduce_part", 0)
        others = sum(kinds.values()) - reduced - drawn - parts
        what = [f"{reduced} {cases} to reduce", *([f"in {parts} parts"] if parts else []), f"{drawn} to draw"]
        what += [f"{others} across cases"] if others else []
        steps = sum(kinds.values())
        return f"{steps} step{'s' * (steps != 1)}: {', '.join(what)}"

    def format_job_info(self, msg):
        what = self.messages[msg["jobid"]] = msg["rule_msg"] or msg["rule_name"]
        if self.dryrun:
            return f"{what}  ({self._short(msg['reason'])})"
        self.began = self.began or time.monotonic()
        if what in self.failed:
            self.failed.remove(what)
            return f"again: {what}"
        self.started += 1
        return f"[{self.started} of {self.total}{self._left()}] {what}"

    def format_job_error(self, msg):
        self.failed.append(self.messages.get(msg["jobid"], msg["rule_name"]))
        logs = [*map(str, msg["log"]), *(self.cluster_logs if msg["indent"] else [])]
        said = self._last_line(logs[0]) if logs and workflow.non_local_exec else ""
        return f"{said}failed: {self.failed[-1]}; see {', '.join(logs or ['the lines above'])}"

    def _last_line(self, log):
        """What a job on another machine said as it failed, once; nothing for one that was killed."""
        lines = Path(log).read_text("utf-8", "replace").splitlines() if os.path.exists(log) else []
        if not lines or lines[-1].startswith(("INFO", "WARNING")) or lines[-1] in self.lines:
            return ""
        self.lines.add(lines[-1])
        return f"{lines[-1]}\n"

    def _left(self):
        if self.done < 5:
            return ""
        seconds = (time.monotonic() - self.began) / self.done * (self.total - self.done)
        return f", about {seconds:.0f} s left" if seconds < 100 else f", about {seconds / 60:.0f} min left"

    @staticmethod
    def _short(reason):
        words = str(reason)
        return words if len(words) <= 160 else f"{words[:157]}..."


def nearest_target(name):
    """What to ask for instead of a target that there is not."""
    if found := re.fullmatch(r"results/([^/]+)/([^/]+)/([^/]+)/[^/]+", name):
        dataset, study, case = found.groups()
        for part in (dataset, case):
            if not NAME.fullmatch(part):
                return f"{part!r} names no dataset or case: such names have letters, digits, '.', '_' and '-'"
        if study not in STUDIES:
            return f"of the studies, {schemas.nearest(study, STUDIES)}"
        return "of a case, there are figure.pdf, figure_column.pdf, table.csv, notebook.html, data.parquet and summary.json"
    published = {re.sub(r"[. ]", "", entry["place"]).lower(): entry for entry in PAPER}
    if entry := published.get(name.lower()):
        return f"{entry['place']} of the published paper is {entry['target']}, its number in the submission"
    near = get_close_matches(name, [known.name for known in workflow.rules], 1)
    remedy = f"did you mean {near[0]}?" if near else "give a file in results/, a study, or a target of docs/ARTIFACT.md"
    dataset = Path("traces", name, "dataset.yaml").is_file()
    return f"ask for a case of this dataset: results/{name}/<study>/<case>/figure.pdf" if dataset else remedy


PROGRESS = None
for handler in logger.handlers:
    # With --verbose, Snakemake says everything itself; its log file always holds everything.
    if handler.name == "DefaultStreamHandler" and not handler.filters[0].verbose:
        PROGRESS = Progress(handler.formatter, handler.filters[0].dryrun)
        handler.setFormatter(PROGRESS)
        handler.addFilter(PROGRESS.says)


#: Claims with another verdict that are named at the end of a run, at most.
SHOWN_CHANGES = 10


def summarise():
    """Say what was made, and which claims have another verdict than the tracked scorecard has."""
    if PROGRESS is None or Quietness.ALL in PROGRESS.quiet:
        return
    from gpuledger.ledger import changes

    made, reduced = (
        sum(what.startswith(verb) and what not in PROGRESS.failed for what in PROGRESS.messages.values())
        for verb in ("draw ", "reduce ")
    )
    lines = [f"not made: {failed}" for failed in PROGRESS.failed]
    changed = changes.verdict_changes(Path())
    lines += [f"verdict changed: {change}" for change in changed[:SHOWN_CHANGES]]
    # Other datasets than those of the tracked scorecard have other claims, a thousand of them.
    if (more := len(changed) - SHOWN_CHANGES) > 0:
        lines.append(f"verdicts changed: {more:,} more, which python -m gpuledger.ledger.changes lists")
    # With --quiet, Snakemake does not tell what it begins.
    if PROGRESS.began is not None:
        seconds = time.monotonic() - PROGRESS.began
        # Where only data are asked for, nothing is drawn.
        count, done = (made, "made") if made or not reduced else (reduced, "reduced")
        lines.insert(0, f"{count} case{'s' * (count != 1)} {done} in {seconds:.0f} s")
    for line in lines:
        print(line, file=sys.stderr)


onsuccess:
    summarise()


onerror:
    summarise()
