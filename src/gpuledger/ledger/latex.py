"""LaTeX tables (booktabs, siunitx) that fit a page of two columns, and a linter for what LaTeX would refuse."""

import math
import re
import textwrap
from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import lru_cache

import pandas as pd

#: Widths in points: of a page of two columns, of one of them, and of the gap on either side of a table's column.
TEXT_WIDTH, COLUMN_WIDTH, GAP = 504, 240, 3
#: Font sizes and their line heights in points, the preferred size first.
SIZES = {"small": (9, 11), "footnotesize": (8, 9.5), "scriptsize": (7, 8)}
#: Points that the rows of a float may take; a longer table continues in another float.
TALLEST = 500

_NUMBER = re.compile(r"([+-]?)(\d{1,3}(?:,\d{3})+|\d+)(?:\.(\d+))?")
#: After these, a line may break in a column of text.
_BREAKS = re.compile(r"(?<=[_/(<=])(?=\S)|(?<=,)(?=[^\s\d])|(?<=::)|(?<=[a-z])(?=[A-Z])")
_LONGEST_PIECE = 14
_TABLE = re.compile(r"\\begin\{(table\*?)\}.*?\\begin\{tabular\}\{([^\n]*)\}\n(.*?)\\end\{", re.DOTALL)
_COLUMN = re.compile(r"S\[table-format=(\+?)(\d+)\.?(\d*)\]|p\{(\d+)pt\}|[lr]")
_WRAPPED = r">{\raggedright\arraybackslash}"

#: Widths of characters in Times, in em with a margin of 6 %; of others that of a digit.
_EM = {
    0.3: " ijlt.,:;/|'!\\",
    0.36: "()[]-frI`",
    0.47: 'acezsJ?^"',
    0.6: "+<>=FPS~{}",
    0.71: "BCELRTZ",
    0.77: "ADGHKNOQUVXYw",
    0.9: "m%&",
    1.0: "MW@",
}
_ADVANCE = {character: em for em, characters in _EM.items() for character in characters}
_DIGIT = 0.53

_SIGNS = {sign: f"\\{sign}" for sign in "&%$#_{}"}
_SIGNS |= dict(zip('"–−²³\u00a0\u202f', ("''", "--", "$-$", "$^2$", "$^3$", "~", r"\,"), strict=True))
_TEXT = "textbackslash textasciitilde textasciicircum textless textgreater textbar dots"
_SIGNS |= {sign: f"\\{name}{{}}" for sign, name in zip("\\~^<>|…", _TEXT.split(), strict=True)}
_MATH = "times geq leq approx rightarrow cdot pm surd mu mu alpha beta varepsilon rho sigma kappa"
_SIGNS |= {sign: f"$\\{name}$" for sign, name in zip("×≥≤≈→·±√µμαβερσκ", _MATH.split(), strict=True)}


@lru_cache(2**14)
def escape(text: str) -> str:
    """Escape a text; a sign that LaTeX does not have becomes its number, as in ``[U+4E2D]``."""
    return "".join(_SIGNS.get(sign) or _letter(sign) for sign in str(text))


def _letter(sign: str) -> str:
    # Letters with accents are set up in LaTeX.
    return sign if " " <= sign <= "~" or "À" <= sign <= "ÿ" else " " if sign.isspace() else f"[U+{ord(sign):04X}]"


def table(shown: pd.DataFrame, caption: str, label: str, numeric: Sequence[bool]) -> str:
    """Return a table of texts as ``table``, or as ``table*`` where it is wider than a column.

    Numbers are rounded to what a reader of a paper needs, texts that are the same in every row go into the caption,
    a text that the row above has as well is left out in the first columns, and a table taller than a page continues
    in further floats.

    Parameters
    ----------
    shown : DataFrame
        Of texts; its columns are the headers.
    caption, label : str
        The caption is not escaped yet; the label is used unchanged.
    numeric : sequence of bool
        Which columns are numbers.
    """
    columns = [_Column(name, list(shown.iloc[:, place]), numeric[place]) for place, name in enumerate(shown)]
    same = [column for column in columns[1:] if len(shown) > 2 and column.is_constant()]
    columns = [column for column in columns if column not in same]
    if said := "; ".join(f"{column.name}: {column.texts[0]}" for column in same if column.texts[0]):
        caption += f" In every row {said}."
    size = next((size for size in SIZES if sum(column.width(size) for column in columns) <= TEXT_WIDTH), "scriptsize")
    _wrap(columns, size)
    width = sum(column.width(size) for column in columns)
    environment = "table" if width <= COLUMN_WIDTH else "table*"
    formats = "".join(column.format() for column in columns)
    head, *rows = zip(*(column.cells() for column in columns), strict=True)
    repeated, starts = _repeated(columns), _groups(columns[0])
    floats: list[list[str]] = [[]]
    height = 0.0
    for place, row in enumerate(rows):
        height += SIZES[size][1] * max(column.lines(place, size) for column in columns) + 4 * (place in starts)
        if height > TALLEST:
            floats.append([])
            height = 0.0
        # The first row of a float says what the rows above it say.
        cells = ["" if left_out and floats[-1] else cell for cell, left_out in zip(row, repeated[place], strict=True)]
        floats[-1] += [r"\addlinespace"] * (place in starts and bool(floats[-1])) + [" & ".join(cells) + r" \\"]
    opening = f"\\begin{{{environment}}}[tp]\n\\centering\\{size}\\setlength{{\\tabcolsep}}{{{GAP}pt}}"
    reference = f"\\textit{{Table~\\ref{{{label}}}, continued}}"
    lines = []
    for number, body in enumerate(floats):
        lines += [opening, "" if number else f"\\caption{{{escape(caption)}}}\\label{{{label}}}"]
        lines += [f"\\begin{{tabular}}{{{formats}}}"]
        lines += [f"\\multicolumn{{{len(columns)}}}{{l}}{{{reference}}} \\\\"] * bool(number)
        lines += ["\\toprule", " & ".join(head) + r" \\", "\\midrule", *body, "\\bottomrule"]
        lines += ["\\end{tabular}", f"\\end{{{environment}}}"]
    return "\n".join([*filter(None, lines), ""])


class _Column:
    """A column of a table: its header, its texts and how they are set."""

    def __init__(self, name: str, texts: list[str], numeric: bool) -> None:
        self.name, self.texts = name, texts
        self.numeric = numeric and any(map(_NUMBER.fullmatch, texts))
        #: Points that a column of text gets where it would not fit; None where it does.
        self.limit: float | None = None
        if self.numeric:
            self.texts = _rounded(texts)
            parts = [part for part in map(_NUMBER.fullmatch, self.texts) if part]
            # A column of numbers below the smallest that is shown has none left.
            self.whole = max((len(part[2].replace(",", "")) for part in parts), default=1)
            self.decimals = max((len(part[3] or "") for part in parts), default=0)
            self.sign = "+" if any(part[1] for part in parts) else ""

    def is_constant(self) -> bool:
        """Whether all rows have one text, which the caption can say."""
        return not self.numeric and len(set(self.texts)) == 1

    def header(self) -> list[str]:
        """Break the header into lines about as long as the column's cells."""
        longest = max([10, *map(len, self.texts)])
        return textwrap.wrap(self.name, longest, break_long_words=len(escape(self.name)) > 60) or [""]

    def width(self, size: str) -> float:
        """Estimate the width in points, with the gaps beside it."""
        if self.limit:
            return self.limit + 2 * GAP
        points = [_points(escape(text), size) for text in self.header()]
        points += [_points(escape(text), size) for text in self.texts if not (self.numeric and _NUMBER.fullmatch(text))]
        if self.numeric:
            points.append(_number_points(self.sign, self.whole, self.decimals, size))
        return max(points) + 2 * GAP

    def floor(self, size: str) -> float:
        """Return the smallest width in points that breaks no piece of a text."""
        words = {word for text in {self.name, *self.texts} for word in text.split()}
        pieces = {piece for word in words for piece in _pieces(word)}
        return max((_points(escape(piece), size) for piece in pieces), default=0) + 2 * GAP + 2

    def lines(self, row: int, size: str) -> int:
        """Estimate the lines of a cell."""
        return 1 if not self.limit else max(1, math.ceil(1.15 * _points(escape(self.texts[row]), size) / self.limit))

    def format(self) -> str:
        """Return the column's place in the head of ``tabular``."""
        if self.numeric:
            return f"S[table-format={self.sign}{self.whole}{f'.{self.decimals}' if self.decimals else ''}]"
        if self.limit:
            return f"{_WRAPPED}p{{{self.limit:.0f}pt}}"
        filled = [text for text in self.texts if text]
        return "r" if filled and all(re.match(r"[≈<+−-]?\d", text) for text in filled) else "l"

    def cells(self) -> list[str]:
        """Return the header and the cells as LaTeX."""
        if self.limit:
            return [_breakable(text) for text in (self.name, *self.texts)]
        lines = r" \\ ".join(map(escape, self.header()))
        header = f"\\shortstack[{'c' if self.numeric else self.format()}]{{{lines}}}" if r" \\ " in lines else lines
        if not self.numeric:
            return [header, *map(escape, self.texts)]
        bare = [text.replace(",", "") if _NUMBER.fullmatch(text) else f"{{{escape(text)}}}" for text in self.texts]
        return [f"{{{header}}}", *bare]


def _rounded(texts: list[str]) -> list[str]:
    """Round a column's numbers to decimals that its largest one leaves a reader: five digits, at least one decimal."""
    parts = [_NUMBER.fullmatch(text) for text in texts]
    found = [part for part in parts if part]
    decimals = max(len(part[3] or "") for part in found)
    most = max(1, 5 - max(len(part[2].replace(",", "").lstrip("0")) for part in found))
    if decimals <= most:
        return texts
    smallest = Decimal(1).scaleb(-most)
    rounded = []
    for text, part in zip(texts, parts, strict=True):
        if part and len(part[3] or "") > most:
            value = Decimal(text.replace(",", ""))
            near = value.quantize(smallest)
            text = f"{near:{'+' if part[1] == '+' else ''},}" if near or not value else f"<{smallest}"
        rounded.append(text)
    return rounded


def _wrap(columns: list[_Column], size: str) -> None:
    """Make the widest columns of text narrower until the table fits, none narrower than its longest piece."""
    widths = {column: column.width(size) for column in columns if not column.numeric}
    room = TEXT_WIDTH - sum(column.width(size) for column in columns if column.numeric)
    floors = {column: column.floor(size) for column in widths}
    for level in range(TEXT_WIDTH, 0, -2):
        if sum(min(width, max(level, floors[column])) for column, width in widths.items()) <= room:
            break
    for column, width in widths.items():
        if width > (most := max(level, floors[column])):
            column.limit = math.floor(most - 2 * GAP)


def _repeated(columns: list[_Column]) -> list[list[bool]]:
    """Return, row by row, which leading cells repeat the row above, where the first column has groups of rows."""
    rows = [[False] * len(columns) for _ in columns[0].texts]
    for row in range(1, len(rows)) if len(set(columns[0].texts)) < len(rows) else ():
        for place, column in enumerate(columns):
            if column.numeric or column.texts[row] != column.texts[row - 1]:
                break
            rows[row][place] = True
    return rows


def _groups(first: _Column) -> set[int]:
    """Return the rows that begin a group, which has one text in the first column, if groups have two rows or more."""
    texts = first.texts
    starts = {row for row in range(1, len(texts)) if texts[row] != texts[row - 1]}
    return starts if len(texts) >= 2 * (len(starts) + 1) else set()


def _pieces(text: str) -> list[str]:
    """Split a text at the places where a line may break."""
    found = []
    for piece in filter(None, _BREAKS.split(text)):
        if len(escape(piece)) <= _LONGEST_PIECE:
            found.append(piece)
        else:
            step = 10 if piece.isascii() else 1
            found += [piece[start : start + step] for start in range(0, len(piece), step)]
    return found


def _breakable(text: str) -> str:
    return " ".join("\\allowbreak{}".join(map(escape, _pieces(word))) for word in text.split(" "))


@lru_cache(2**14)
def _points(text: str, size: str | float) -> float:
    """Estimate the width of a text in LaTeX, in points."""
    em = SIZES[size][0] if isinstance(size, str) else size
    printed = re.sub(r"\\shortstack\[\w\]|\\allowbreak\{\}|[$]", "", text)
    printed = re.sub(r"\\[A-Za-z]+(?:\{\})?", "+", printed)
    printed = re.sub(r"\\(?=[&%#_{}$])|(?<!\\)[{}]", "", printed)
    return em * sum(_ADVANCE.get(character, _DIGIT) for character in printed)


def _number_points(sign: str, whole: int, decimals: int, size: str | float) -> float:
    # As documents set them: with a comma between thousands.
    commas = (whole - 1) // 3 if whole > 3 else 0
    return _points(f"{sign}{'0' * whole}{',' * commas}{'.' * bool(decimals)}{'0' * decimals}", size)


def lint(text: str) -> list[str]:
    """Return what LaTeX would refuse or print beyond the margin, one line each.

    Braces that do not match, rows of another number of cells than the table has columns, signs that LaTeX lacks, an
    environment that pages of two columns do not have, a table wider than its place (estimated).
    """
    found = [f"line {number}: {sign!r} is unknown to LaTeX" for number, sign in _unknown(text)]
    bare = re.sub(r"\\[{}\\]", "", text)
    if bare.count("{") != bare.count("}"):
        found.append(f"{bare.count('{')} opening braces, {bare.count('}')} closing ones")
    if "\\begin{longtable}" in text:
        found.append("longtable does not work in two columns")
    for environment in _TABLE.finditer(text):
        size = next((points for name, (points, _) in SIZES.items() if f"\\{name}\\" in environment[0]), 10)
        place = COLUMN_WIDTH if environment[1] == "table" else TEXT_WIDTH
        columns = list(_COLUMN.finditer(environment[2].replace(_WRAPPED, "")))
        lines = [line for line in environment[3].splitlines() if line.endswith(r"\\") and "\\multicolumn" not in line]
        rows = [re.split(r"(?<!\\)&", line.removesuffix(r"\\")) for line in lines]
        wrong = [line for line, row in zip(lines, rows, strict=True) if len(row) != len(columns)]
        found += [f"{line.count('&') + 1} cells in {len(columns)} columns: {line[:60]}" for line in wrong]
        if not wrong:
            width = sum(map(lambda column, cells: _linted(column, cells, size), columns, zip(*rows, strict=True)))
            if width > place + 1:
                found.append(f"about {width:.0f} pt wide, {place} pt are there")
    return found


def _linted(column: re.Match, cells: Iterable[str], size: float) -> float:
    """Estimate the width of a column from its LaTeX, with the gaps beside it."""
    if column[4]:
        return float(column[4]) + 2 * GAP
    # siunitx sets numbers; braces hold text.
    texts = [cell.strip() for cell in cells if column[0] in "lr" or cell.strip().startswith("{")]
    points = [_points(line, size) for text in texts for line in text.split(r" \\ ")]
    if column[2]:
        points.append(_number_points(column[1], int(column[2]), int(column[3] or 0), size))
    return max(points, default=0.0) + 2 * GAP


def _unknown(text: str) -> list[tuple[int, str]]:
    lines = enumerate(text.splitlines(), 1)
    return [(number, sign) for number, line in lines for sign in line if not (" " <= sign <= "~" or "À" <= sign <= "ÿ")]
