"""LaTeX tables (booktabs, siunitx) that fit a page of two columns, and a linter for what LaTeX would refuse."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

import pandas as pd

#: Points across both columns of a paper, and of a column's gap on either side.
TEXT_WIDTH, GAP = 504, 3
#: Font sizes in points, from the preferred one, and about how wide a character is in each.
SIZES = {"small": 9, "footnotesize": 8, "scriptsize": 7}
_CHARACTER = 0.5
#: Rows of a float; longer tables break over pages, which they can in one column only.
LONGEST = 50
_NARROWEST = 60

_NUMBER = re.compile(r"([+-]?)(\d{1,3}(?:,\d{3})+|\d+)(?:\.(\d+))?")
#: After these, a line may break in a column of text.
_BREAKS = re.compile(r"(?<=[_,/(<=])(?=\S)|(?<=::)|(?<=[a-z])(?=[A-Z])")
_TABLE = re.compile(r"\\begin\{(?:tabular|longtable)\}\{([^\n]*)\}\n(.*?)\\end\{", re.DOTALL)
_COLUMN = re.compile(r"S\[[^]]*\]|p\{(\d+)pt\}|[lr]")
_MARKUP = re.compile(r"\\shortstack\[l\]|\\[A-Za-z]+(?:\{\})?|[{}$]|\\(?=[&%#_{}$])")

_SIGNS = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "×": r"$\times$",
    "−": r"$-$",
    "–": "--",
    "…": r"\dots{}",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "≈": r"$\approx$",
    "→": r"$\rightarrow$",
    "·": r"$\cdot$",
    "±": r"$\pm$",
    "√": r"$\surd$",
    "²": r"$^2$",
    "³": r"$^3$",
    "µ": r"$\mu$",
    "μ": r"$\mu$",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "ε": r"$\varepsilon$",
    "ρ": r"$\rho$",
    "σ": r"$\sigma$",
    "κ": r"$\kappa$",
    "\u00a0": "~",
    "\u202f": r"\,",
}


#: Texts of signs that mean themselves.
_PLAIN = re.compile(f"[^{re.escape(''.join(_SIGNS))}\\x00-\\x1f\\x7f-\\U0010ffff]*")


def escape(text: str) -> str:
    """Escape a text; a sign that LaTeX does not have becomes its number, as in ``[U+4E2D]``."""
    text = str(text)
    return text if _PLAIN.fullmatch(text) else "".join(_SIGNS.get(sign) or _letter(sign) for sign in text)


def _letter(sign: str) -> str:
    # Letters with accents are set up in LaTeX.
    return sign if " " <= sign <= "~" or "À" <= sign <= "ÿ" else " " if sign.isspace() else f"[U+{ord(sign):04X}]"


def table(shown: pd.DataFrame, caption: str, label: str, numeric: Sequence[bool]) -> str:
    """Return a table of texts as ``table*``, or as ``longtable`` if it has more than `LONGEST` rows.

    Parameters
    ----------
    shown : DataFrame
        Of texts; its columns are the headers.
    caption, label : str
        Neither is escaped yet in the caption; the label is used as it is.
    numeric : sequence of bool
        Which columns are numbers.
    """
    columns = list(shown)
    numeric = [
        is_number and any(map(_NUMBER.fullmatch, shown.iloc[:, number]))
        for number, (is_number, _) in enumerate(zip(numeric, columns, strict=False))
    ]
    longest = _longest(shown)
    size = next((size for size in SIZES if sum(_widths(longest, size)) <= TEXT_WIDTH), "scriptsize")
    formats, cells = [], {}
    limits = _limits(_widths(longest, size), numeric)
    for number, (name, is_number, limit) in enumerate(zip(columns, numeric, limits, strict=False)):
        texts = list(shown.iloc[:, number])
        parts = [_NUMBER.fullmatch(text) for text in texts]
        if is_number:
            formats.append(_siunitx(filter(None, parts)))
            bare = [
                text.replace(",", "") if part else f"{{{escape(text)}}}"
                for text, part in zip(texts, parts, strict=True)
            ]
            cells[number] = [f"{{{_header(name, texts)}}}", *bare]
        elif limit:
            formats.append(f">{{\\raggedright\\arraybackslash}}p{{{limit:.0f}pt}}")
            cells[number] = [_breakable(text) for text in (name, *texts)]
        else:
            formats.append("l")
            cells[number] = [_header(name, texts), *map(escape, texts)]
    lines = [" & ".join(row) + r" \\" for row in zip(*cells.values(), strict=True)]
    return _framed(lines, formats, size, f"\\caption{{{escape(caption)}}}\\label{{{label}}}")


def _framed(lines: list[str], formats: list[str], size: str, caption: str) -> str:
    head, *body = lines
    columns, tight = "".join(formats), f"\\{size}\\setlength{{\\tabcolsep}}{{{GAP}pt}}"
    if len(body) > LONGEST:
        repeated = ["\\toprule", head, "\\midrule"]
        opening = [f"{{{tight}", f"\\begin{{longtable}}{{{columns}}}", f"{caption} \\\\", *repeated, "\\endfirsthead"]
        return "\n".join([*opening, *repeated, "\\endhead", *body, "\\bottomrule", "\\end{longtable}}", ""])
    opening = ["\\begin{table*}[t]", f"\\centering{tight}", caption, f"\\begin{{tabular}}{{{columns}}}"]
    rules = ["\\toprule", head, "\\midrule", *body, "\\bottomrule"]
    return "\n".join([*opening, *rules, "\\end{tabular}", "\\end{table*}", ""])


def _longest(shown: pd.DataFrame) -> list[int]:
    """Return the characters of each column's longest line."""
    columns = [(_wrapped(name, shown.iloc[:, number]), shown.iloc[:, number]) for number, name in enumerate(shown)]
    return [max(len(_MARKUP.sub("", escape(text))) for text in [*header, *texts]) for header, texts in columns]


def _widths(longest: list[int], size: str) -> list[float]:
    """Estimate the columns' widths in points."""
    return [characters * SIZES[size] * _CHARACTER + 2 * GAP for characters in longest]


def _wrapped(name: str, texts: Sequence[str]) -> list[str]:
    """Break a header into lines about as long as the column's cells."""
    return textwrap.wrap(name, max([10, *map(len, texts)]), break_long_words=False) or [""]


def _header(name: str, texts: Sequence[str]) -> str:
    lines = r" \\ ".join(map(escape, _wrapped(name, texts)))
    return f"\\shortstack[l]{{{lines}}}" if r" \\ " in lines else lines


def _limits(widths: list[float], numeric: Sequence[bool]) -> list[float | None]:
    """Return the width that columns of text get where they would not fit; None where they do."""
    limits: list[float | None] = [None] * len(widths)
    for _ in widths:
        taken = [limit + 2 * GAP if limit else width for limit, width in zip(limits, widths, strict=True)]
        beyond = sum(taken) - TEXT_WIDTH
        if beyond <= 0:
            break
        free = [width if not is_number else 0 for width, is_number in zip(taken, numeric, strict=False)]
        widest = max(range(len(widths)), key=lambda number: free[number])
        second = max([width for number, width in enumerate(free) if number != widest] or [0])
        limits[widest] = max(_NARROWEST, min(taken[widest] - beyond, max(second, _NARROWEST)) - 2 * GAP)
    return limits


def _siunitx(parts) -> str:
    parts = list(parts)
    whole = max(len(part[2].replace(",", "")) for part in parts)
    decimals = max(len(part[3] or "") for part in parts)
    sign = "+" if any(part[1] for part in parts) else ""
    return f"S[table-format={sign}{whole}{f'.{decimals}' if decimals else ''}]"


def _breakable(text: str) -> str:
    return "\\allowbreak{}".join(escape(part) for part in _BREAKS.split(text))


def lint(text: str) -> list[str]:
    """Return what LaTeX would refuse or print beyond the margin, one line each.

    Braces that do not match, rows of another number of cells than the table has columns, signs that LaTeX lacks, a
    table wider than the page (estimated).
    """
    found = [f"line {number}: {sign!r} is unknown to LaTeX" for number, sign in _unknown(text)]
    bare = re.sub(r"\\[{}\\]", "", text)
    if bare.count("{") != bare.count("}"):
        found.append(f"{bare.count('{')} opening braces, {bare.count('}')} closing ones")
    size = next((points for name, points in SIZES.items() if f"\\{name}\\" in text), 10)
    for environment in _TABLE.finditer(text):
        # A width in points for a column of text, else nothing.
        columns = _COLUMN.findall(re.sub(r">\{\\raggedright\\arraybackslash\}", "", environment[1]))
        lines = [line for line in environment[2].splitlines() if line.endswith(r"\\") and "\\caption" not in line]
        rows = [re.split(r"(?<!\\)&", line.removesuffix(r"\\")) for line in lines]
        wrong = [line for line, row in zip(lines, rows, strict=True) if len(row) != len(columns)]
        found += [f"{line.count('&') + 1} cells in {len(columns)} columns: {line[:60]}" for line in wrong]
        if not wrong:
            printed = [[_MARKUP.sub("", cell).split(r" \\ ") for cell in cells] for cells in zip(*rows, strict=True)]
            longest = [max(len(line.strip()) for cell in cells for line in cell) for cells in printed]
            widths = [float(limit or size * _CHARACTER * most) for limit, most in zip(columns, longest, strict=True)]
            width = sum(widths) + 2 * GAP * len(columns)
            if width > TEXT_WIDTH + 1:
                found.append(f"about {width:.0f} pt wide, {TEXT_WIDTH} pt are there")
    return found


def _unknown(text: str) -> list[tuple[int, str]]:
    lines = enumerate(text.splitlines(), 1)
    return [(number, sign) for number, line in lines for sign in line if not (" " <= sign <= "~" or "À" <= sign <= "ÿ")]
