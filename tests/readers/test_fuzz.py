"""``make fuzz`` itself: every reader of its list reads its undamaged file, and damaged ones in a line."""

import subprocess
import sys

from gpuledger.files import ROOT


def test_every_reader_takes_damaged_files():
    command = [sys.executable, "benchmarks/fuzz.py", "3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": 3 runs,") > 50
