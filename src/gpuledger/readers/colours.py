"""Colours of a terminal, which logs keep: vLLM's workers and Docker put them around what stands before every line."""

import re

_SEQUENCE = re.compile(rb"\x1b\[[0-?]{0,30}[ -/]{0,3}[@-~]")


def without_colours(content: bytes) -> bytes:
    """Return text without sequences that a terminal would not print."""
    return _SEQUENCE.sub(b"", content) if b"\x1b" in content else content
