"""Regular expressions that users or files give: which of them may take long."""

from math import prod
from re import _parser as sre

#: A repetition of more than so many counts as long. A regex without, with one and with more long ones may match in so
#: many ways by its short repetitions and alternatives.
_LONG, _MOST_WAYS, _LONGEST_REGEX = 100, (10_000, 1_000, 1_000, 1_000), 500
_REPEATS = (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT)


def slow_regex(regex: str, most_long: int = 2) -> str | None:
    """Return why a regex may take time that grows with more than a small power of a name's length.

    Parameters
    ----------
    most_long : int
        Long repetitions that may follow each other, at most 3: the power.
    """
    if len(regex) > _LONGEST_REGEX:
        return f"is longer than {_LONGEST_REGEX} characters"
    nested = False

    def ways(part: object, within: bool) -> tuple[int, int]:
        """Return the ways to match and the long repetitions of a part."""
        nonlocal nested
        operation, content = part if isinstance(part, tuple) and len(part) == 2 else (None, part)
        if operation in _REPEATS:
            least, most, content = content
            nested |= within and least != most
            inner, long = ways(content, within or most > 1)
            return (most - least + 1 if most <= _LONG else 1) * inner, long + (most > _LONG)
        if operation is sre.BRANCH:
            nested |= within
            found = [ways(alternative, within) for alternative in content[1]]
            return sum(inner for inner, _ in found), max(long for _, long in found)
        parts = content if isinstance(content, (tuple, list, sre.SubPattern)) else ()
        found = [ways(inner, within) for inner in parts]
        return prod(inner for inner, _ in found), sum(long for _, long in found)

    found, long = ways(sre.parse(regex), False)
    if nested:
        return "repeats what has repetitions or alternatives in it"
    if long > most_long:
        return f"has more than {most_long} long repetitions"
    return "has too many repetitions and alternatives" if found > _MOST_WAYS[long] else None
