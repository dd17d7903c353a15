"""Numbers with units, as the figures write them."""

from gpuledger.ledger.case_result import time_unit


def format_bandwidth(bytes_per_s: float) -> str:
    """Write a bandwidth: 4.8 TB/s."""
    return f"{bytes_per_s / 1e12:.3g} TB/s" if bytes_per_s >= 1e12 else f"{bytes_per_s / 1e9:.3g} GB/s"


def format_time(seconds: float) -> str:
    """Write a time in s, ms, µs or ns with three digits, zeros included: 13.0 ms beside 13.1 ms; zero as 0 s."""
    rounded = float(f"{seconds:.3g}")
    if not rounded:
        return "0 s"
    factor, unit = time_unit(rounded)
    value = rounded * factor
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:#.3g} {unit}"


def format_decimal(value: float, _: object = None) -> str:
    """Write an axis tick: 0.1, 1,000, 10k."""
    return f"{value / 1000:g}k" if value >= 10_000 else f"{value:,g}"


def format_binary(value: float, _: object = None) -> str:
    """Write a number of tokens or requests with k for 1024: 512, 4k, 13k."""
    return f"{value / 1024:.3g}k" if value >= 1024 else f"{value:g}"
