"""Unit names of Nsight Compute and their base units.

Nsight Compute scales each value separately (2.33 Mbyte next to 512 byte), and its unit names have changed over the
years (``nsecond`` → ``ns``, ``cycle/nsecond`` → ``Ghz``). Here each becomes a base unit and a power of ten.
"""

import re

# Nsight Compute's own base: nanoseconds for a time, per second for a rate. Powers are of the base ``ns``.
_TIME = {
    **dict.fromkeys(("ns", "nsecond"), 0),
    **dict.fromkeys(("us", "µs", "μs", "usecond"), 3),
    **dict.fromkeys(("ms", "msecond"), 6),
    **dict.fromkeys(("s", "second"), 9),
}
_PREFIX = {"k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
#: What data frames write where there is no unit.
_NONE = ("nan", "NaN", "None", "<NA>")
_HERTZ = re.compile(r"([kKMGTPE]?)[hH][zZ]")
# Unit names are lower case, so a capital letter before one is a prefix; binary prefixes are not used.
_SCALED = re.compile(r"(?:([KMGTPE])(?!i(?:byte|bit|b)\b)|(k)(?=byte|bit))([a-z]{3,})")


def _scaled_word(word: str) -> tuple[str, int]:
    if match := _HERTZ.fullmatch(word):
        return "hz", _PREFIX.get(match[1], 0)
    if match := _SCALED.fullmatch(word):
        return match[3], _PREFIX[match[1] or match[2]]
    return word, 0


def base_unit(unit: str) -> tuple[str, int]:
    """Return the base unit, and the power of ten that converts values to it.

    Parameters
    ----------
    unit : str
        A unit as printed: ``Mbyte``, ``usecond``, ``cycle/nsecond``, ``Gbyte/s``, ``%`` or ``""``.

    Returns
    -------
    word : str
        Times are ``ns``, frequencies ``hz``, rates ``…/s``, sizes ``byte``. Unknown names are returned as they are.
    power : int
        ``value_in_base = value * 10**power``.

    Examples
    --------
    >>> base_unit("Gbyte/second"), base_unit("cycle/nsecond"), base_unit("register/thread")
    (('byte/s', 9), ('hz', 9), ('register/thread', 0))
    """
    top, slash, bottom = ("" if unit in _NONE else unit.strip()).partition("/")
    if top in _TIME:
        word, power = "ns", _TIME[top]
    else:
        word, power = _scaled_word(top)
    if not slash:
        return word, power
    if bottom in _TIME:
        bottom, power = "s", power + 9 - _TIME[bottom]
    else:
        bottom, divisor = _scaled_word(bottom)
        power -= divisor
    return ("hz" if (word, bottom) == ("cycle", "s") else f"{word}/{bottom}"), power
