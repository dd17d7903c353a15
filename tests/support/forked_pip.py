"""pip, in a fork of a process that has imported it: `python -m pip` is busy with its imports most of the time."""

import json
import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "workflow" / "scripts"))
import fork_server

os.environ.setdefault("FORKED_PIP", json.dumps(sys.argv[1:]))
fork_server.hand_over("pip._internal.cli.main", "pip._internal.commands.download")

import tempfile  # noqa: E402

from pip._internal.cli.main import main  # noqa: E402

tempfile.tempdir = None  # that of its own environment
sys.exit(main(json.loads(os.environ.pop("FORKED_PIP"))))
