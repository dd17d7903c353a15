"""Find the decimal sign of a file while its values are read.

``1.234`` is a different number in different locales, so the decimal sign is decided once per file, from the values
that can be read in only one way.
"""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from gpuledger.errors import InputError
from gpuledger.readers.ncu.numbers import COMMA, POINT, SPACES, any_of, without_instances

_UNGROUPED = r"^[+-]?[0-9]{4,}(?:[.,][0-9]*)?$"
_GROUPED = rf"^[+-]?[0-9]{{1,3}}(?:[{SPACES}][0-9]{{3}})+$"


class DecimalSign:
    """What the values read so far say of the decimal sign.

    Parameters
    ----------
    given : {".", ","}, optional
        The sign, where it is known.
    assumed : {".", ","}
        The sign to read ambiguous values with, until another value tells.

    Attributes
    ----------
    now : {".", ","}
        The sign to read with, given the values that were added.
    misread : bool
        Ambiguous values were read with another sign than a later value tells.
    """

    def __init__(self, path: str | Path, given: str | None = None, assumed: str = "."):
        self._path, self._given, self._assumed = path, given, assumed
        self.now, self.misread = given or assumed, False
        self._only = dict.fromkeys(".,", "")  # by sign, the first value that can be read with no other
        self._ambiguous: dict[str, str] = {}  # by sign, the first value that can be read with either
        self._in_counts: set[str] = set()
        self._grouped = self._ungrouped = False

    @property
    def certain(self) -> bool:
        """Whether no value so far could have been misread."""
        return bool(self._given or any(self._only.values()) or not self._ambiguous)

    def add(self, texts: pa.Array, counts: pa.Array) -> None:
        """Take in values that are about to be read.

        Parameters
        ----------
        texts : pyarrow.Array of string
            Distinct values.
        counts : pyarrow.Array of string
            Those of metrics that are always whole (such as a number of blocks), where a sign can only group digits.

        Raises
        ------
        InputError
            If values of two locales are mixed.
        """
        if self._given or any(self._only.values()):
            return
        were_certain = self.certain
        texts, _ = without_instances(texts)
        signed = pc.filter(texts, pc.or_(pc.match_substring(texts, "."), pc.match_substring(texts, ",")))
        as_point, as_comma = pc.match_substring_regex(signed, POINT), pc.match_substring_regex(signed, COMMA)
        for sign, mask in ((".", pc.and_not(as_point, as_comma)), (",", pc.and_not(as_comma, as_point))):
            if any_of(mask):
                self._only[sign] = pc.filter(signed, mask)[0].as_py()
                self.now, self.misread = sign, not were_certain and sign != self._assumed
        if any(self._only.values()):
            self._refuse_mixture()
            return
        both = pc.filter(signed, pc.and_(as_point, as_comma))
        for sign in ".,":
            if len(found := pc.filter(both, pc.match_substring(both, sign))):
                self._ambiguous.setdefault(sign, found[0].as_py())
            if any_of(pc.match_substring(counts, sign)):
                self._in_counts.add(sign)
        self._grouped = self._grouped or any_of(pc.match_substring_regex(texts, _GROUPED))
        self._ungrouped = self._ungrouped or any_of(pc.match_substring_regex(texts, _UNGROUPED))

    def check(self, texts: pa.Array) -> None:
        """Take in the values that are no numbers with the sign that they were read with.

        Raises
        ------
        InputError
            If values of two locales are mixed.
        """
        if self._given or not any(self._only.values()):
            return
        other, pattern = (",", COMMA) if self.now == "." else (".", POINT)
        texts, _ = without_instances(texts)
        if any_of(mask := pc.match_substring_regex(texts, pattern)):
            self._only[other] = pc.filter(texts, mask)[0].as_py()
            self._refuse_mixture()

    def _refuse_mixture(self) -> None:
        if all(self._only.values()):
            raise InputError(
                self._path,
                "metric values",
                f"{self._only['.']!r} has a decimal point, {self._only[',']!r} a decimal comma",
                "keep outputs of different locales in separate files, or print them with LC_ALL=C",
            )

    def settle(self) -> str:
        """Return the sign after the last value."""
        if self.certain:
            return self.now
        if len(self._ambiguous) == 1:  # with "1.234" and "1,234", one must be a fraction, but either could be
            sign = next(iter(self._ambiguous))
            if sign in self._in_counts:  # there is no fraction of a block: 1.234 means 1234
                return "," if sign == "." else "."
            if self._grouped or self._ungrouped:  # digits are grouped by spaces or not at all: the sign is for decimals
                return sign
        raise InputError(
            self._path,
            "metric values",
            f"{next(iter(self._ambiguous.values()))!r} is ambiguous (thousands or decimals), "
            "and so is every other value",
            'print the report again with LC_ALL=C, or say which sign is the decimal one (decimal: "."; --decimal .)',
        )
