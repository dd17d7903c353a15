"""Names on disks."""

import re
import unicodedata
from fnmatch import fnmatchcase
from pathlib import Path

MAX_DEPTH = 32
_DEVICE = re.compile(r"(?i)con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³]")


def folded(path: Path) -> str:
    """Return what two paths share when some file system takes them for one."""
    return unicodedata.normalize("NFC", str(path.parent.resolve() / path.name).casefold())


def name_fault(name: str) -> str | None:
    """Return what forbids *name* as a relative path of plain parts."""
    parts = name.split("/")
    if not name or name.startswith("/"):
        return "is absolute" if name else "is empty"
    # Among those of format (Cf) are marks that turn the direction of writing, so that a name looks like another.
    hidden = ("Cc", "Cs", "Cf", "Zl", "Zp")
    if not name.isprintable() and any(unicodedata.category(sign) in hidden for sign in name):
        return "holds a control character"
    if any(_DEVICE.fullmatch(part.partition(".")[0].rstrip()) for part in parts):
        return "is the name of a device on Windows"
    if "\\" in name or any(re.match("[A-Za-z]:", part) for part in parts):
        return "holds a backslash or a drive letter"
    if any(part in ("", ".", "..") for part in parts):
        return "has an empty part, '.' or '..'"
    if len(parts) > MAX_DEPTH or any(len(part.encode()) > 240 for part in parts):
        return "is too deep or too long"
    return None


def matches(name: str, pattern: str) -> bool:
    """Whether a relative path matches a pattern, part by part: ``*`` and ``?`` stand for letters of one part."""
    parts, wanted = name.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))
