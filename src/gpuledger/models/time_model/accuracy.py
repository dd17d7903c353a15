"""Predictions beside measured values: signed relative errors, and times that no error of a prediction explains."""

import pandas as pd

#: Measured over predicted times beyond which the unit is wrong, not the prediction.
IMPLAUSIBLE = 50


def errors_percent(predicted: pd.Series, measured: pd.Series) -> pd.Series:
    """Return the signed relative errors in %."""
    return 100 * (predicted / measured - 1)


def beyond_plausible(measured_s: pd.Series, predicted_s: pd.Series) -> str:
    """Say how far times are from their predictions in the median if that is beyond `IMPLAUSIBLE` (else nothing)."""
    ratio = float((measured_s / predicted_s).median())
    if 1 / IMPLAUSIBLE < ratio < IMPLAUSIBLE:
        return ""
    return f"{1 / ratio:.3g} times shorter" if ratio < 1 else f"{ratio:.3g} times longer"
