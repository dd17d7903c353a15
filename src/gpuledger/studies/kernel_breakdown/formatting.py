"""Quantities as figures write them: short, with their units."""

from __future__ import annotations


def rate(bytes_per_s: float) -> str:
    """Write a bandwidth: 4.8 TB/s."""
    return f"{bytes_per_s / 1e12:.3g} TB/s" if bytes_per_s >= 1e12 else f"{bytes_per_s / 1e9:.3g} GB/s"


def seconds(time: float) -> str:
    """Write a time in the unit that it is at least one of: 12.9 ms."""
    for unit, factor in (("s", 1), ("ms", 1e3), ("µs", 1e6)):
        if time * factor >= 1:
            return f"{time * factor:.3g} {unit}"
    return f"{time * 1e9:.3g} ns"


def decimal(value: float, _: object = None) -> str:
    """Write a number on an axis: 0.1, 100, 10k."""
    return f"{value / 1000:g}k" if value >= 10_000 else f"{value:g}"


def binary(value: float, _: object = None) -> str:
    """Write a number of tokens or requests: 512, 4k, 13k, where k is 1024."""
    return f"{value / 1024:.3g}k" if value >= 1024 else f"{value:g}"


def unbroken(words: str) -> str:
    """Keep a number and its percent sign in one line."""
    return words.replace(" %", "\N{NO-BREAK SPACE}%")
