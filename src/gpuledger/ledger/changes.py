"""What has changed against the tracked results: verdicts of claims, and files.

``python -m gpuledger.ledger.changes`` prints both and exits with status 1 when there is a difference.
"""

import csv
import subprocess
import sys
from io import StringIO
from pathlib import Path

SCORECARD = "results/tables/scorecard.csv"


def verdict_changes(root: str | Path) -> list[str]:
    """Compare the scorecard with the tracked one, claim by claim.

    Returns
    -------
    list of str
        One line per claim and dataset whose verdict is another one; empty without git or a tracked scorecard.
    """
    file = Path(root) / SCORECARD
    tracked = _git(root, "show", f"HEAD:{SCORECARD}")
    if tracked is None or not file.is_file():
        return []
    before, after = _verdicts(tracked), _verdicts(file.read_text("utf-8"))
    return [
        f"{' '.join(filter(None, claim))}: {before.get(claim, 'no claim')} → {after.get(claim, 'no claim')}"
        for claim in sorted(before.keys() | after.keys())
        if before.get(claim) != after.get(claim)
    ]


def changed_files(root: str | Path) -> list[str]:
    """Files below ``results/`` that differ from what is tracked, or are new beside it."""
    listed = _git(root, "status", "--porcelain", "--", "results")
    if listed is None:
        raise FileNotFoundError("not a git checkout: no tracked results to compare with")
    return [line[3:] for line in listed.splitlines()]


def _verdicts(scorecard: str) -> dict[tuple[str, ...], str]:
    rows = csv.DictReader(StringIO(scorecard))
    return {(row["study"], row["id"], row["dataset"]): row["verdict"] for row in rows}


def _git(root: str | Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=False)
    except OSError:
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


if __name__ == "__main__":
    found = [f"verdict changed: {change}" for change in verdict_changes(".")]
    found += [f"differs from what is tracked: {file}" for file in changed_files(".")]
    print("\n".join(found) or "everything equals what is tracked")
    sys.exit(bool(found))
