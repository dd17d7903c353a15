"""Tables in Excel files (``.xlsx``), as CSV."""

import csv
import zipfile
from pathlib import Path

import openpyxl

from gpuledger.errors import InputError

#: What a workbook may unpack to, and the cells of its sheet that are read.
LARGEST_BYTES = 16 * 2**20
MOST_ROWS, MOST_COLUMNS = 10_000, 200


def first_sheet(path: Path, table: Path) -> Path:
    """Write the first sheet of a workbook to the CSV `table`, without the empty rows and columns at its end."""
    if not path.is_file():
        raise InputError(path, "", "the file does not exist", "put it there, or correct the path")
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(member.file_size for member in archive.infolist() if member.filename.endswith(".xml"))
        if unpacked > LARGEST_BYTES:
            problem = f"it unpacks to {unpacked:,} bytes, more than the {LARGEST_BYTES:,} that are read"
            raise InputError(path, "", problem, "remove what is not the table, or save it as CSV")
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        sheet = book.worksheets[0].iter_rows(values_only=True, max_row=MOST_ROWS, max_col=MOST_COLUMNS)
        rows = [[_text(cell) for cell in row] for row in sheet]
        book.close()
    except InputError:
        raise
    except Exception as error:  # a damaged file raises almost anything
        raise InputError(path, "", f"not an Excel file ({error})", "save it as .xlsx or as CSV") from None
    while rows and not any(rows[-1]):
        rows.pop()
    width = max((column for row in rows for column, cell in enumerate(row, 1) if cell), default=0)
    with table.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(row[:width] for row in rows)
    return table


def _text(cell: object) -> str:
    # Excel makes its own true and false of these words.
    return "" if cell is None else str(cell).lower() if isinstance(cell, bool) else str(cell).strip()
