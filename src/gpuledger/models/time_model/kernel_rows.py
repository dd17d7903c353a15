"""Columns of a pass's kernels as arrays, divided among the laws of their times."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

#: Columns that hold words, or objects.
_LABELS = ("kernel", "kind", "precision", "weight_precision", "phase", "routing")


class KernelRows:
    """Columns of kernels as arrays, and the rows of them that one law is for.

    A pass has a few thousand kernels of a dozen laws; pandas takes longer to divide a frame than the laws to compute.
    """

    def __init__(self, columns: Mapping[str, np.ndarray], codes: Mapping[str, np.ndarray], where: np.ndarray):
        self._columns, self._codes, self.where = columns, codes, where

    @classmethod
    def of(cls, frame: pd.DataFrame) -> "KernelRows":
        """Take every row of a frame."""
        columns, codes = {}, {}
        for name in frame:
            if name in _LABELS:
                codes[name], labels = coded(frame[name])
                columns[name] = np.append(labels, [np.nan])[codes[name]]
            else:
                columns[name] = frame[name].to_numpy()
        return cls(columns, codes, np.arange(len(frame)))

    def __len__(self) -> int:
        return len(self.where)

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def __getitem__(self, name: str) -> np.ndarray:
        return self._columns[name][self.where]

    def floats(self, *names: str) -> list[np.ndarray]:
        """Return columns as floats."""
        return [self[name].astype(float) for name in names]

    def label(self, name: str) -> str:
        """Return the first row's entry of a column."""
        return str(self._columns[name][self.where[0]])

    def at(self, chosen: np.ndarray) -> "KernelRows":
        """Return some of the rows, by a mask or by their places among these."""
        return KernelRows(self._columns, self._codes, self.where[chosen])

    def codes(self, name: str) -> np.ndarray:
        """Return a number per row that is the same where the column is: of a missing label -1."""
        if name in self._codes:
            return self._codes[name][self.where]
        return np.unique(self[name], return_inverse=True)[1].reshape(-1)

    def groups(self, names: Sequence[str]) -> list["KernelRows"]:
        """Return the rows that share the columns' entries, in the order of their first."""
        code = np.zeros(len(self), dtype=np.int64)
        for name in names:
            own = self.codes(name)
            code = code * (own.max(initial=0) + 2) + own + 1
        _, first, group = np.unique(code, return_index=True, return_inverse=True)
        return [self.at(group.reshape(-1) == number) for number in np.argsort(first)]


def coded(values: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    """Return the code of every entry, -1 for a missing one, and the entries by code."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        return values.cat.codes.to_numpy(dtype=np.int64), values.cat.categories.to_numpy(dtype=object)
    codes, entries = pd.factorize(values.astype(object))
    return codes, np.asarray(entries, dtype=object)
