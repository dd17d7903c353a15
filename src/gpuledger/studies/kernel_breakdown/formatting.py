"""Numbers with units, as the figures write them."""

_TIMES = ((1.0, "s"), (1e3, "ms"), (1e6, "µs"))


def format_bandwidth(bytes_per_s: float) -> str:
    """Write a bandwidth: 4.8 TB/s."""
    return f"{bytes_per_s / 1e12:.3g} TB/s" if bytes_per_s >= 1e12 else f"{bytes_per_s / 1e9:.3g} GB/s"


def format_time(seconds: float) -> str:
    """Write a time in s, ms, µs or ns: 12.9 ms."""
    factor, unit = time_unit(seconds)
    return f"{seconds * factor:.3g} {unit}"


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the largest unit of time of which a time has at least one, after how many of it are a second."""
    return next(((factor, unit) for factor, unit in _TIMES if seconds * factor >= 1), (1e9, "ns"))


def format_decimal(value: float, _: object = None) -> str:
    """Write an axis tick: 0.1, 1,000, 10k."""
    return f"{value / 1000:g}k" if value >= 10_000 else f"{value:,g}"


def format_binary(value: float, _: object = None) -> str:
    """Write a number of tokens or requests with k for 1024: 512, 4k, 13k."""
    return f"{value / 1024:.3g}k" if value >= 1024 else f"{value:g}"
