"""Parses and formats sizes and durations: "1GiB", "500 MB", "72h". Strict and exact."""

import re
from typing import Final

LARGEST: Final = 2**63 - 1

_SIZE_UNITS: Final = {
    "B": 1,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "PiB": 2**50,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "PB": 10**15,
}
_DURATION_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

_QUANTITY = re.compile(r"([0-9]{1,20}) ?([A-Za-z]*)")


class UnitError(ValueError):
    """Not a size or duration. The message is one line without the key: the problem, and what to write."""


def parse_size(value: object) -> int:
    """Number of bytes in "1GiB", "64 MiB", "500MB", "4096B", "4096" or 4096.

    KiB, MiB ... are powers of 1024; kB, MB ... are powers of 1000. Raises UnitError.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return _bounded(value, value)
    if not isinstance(value, str):
        raise UnitError(f'{value!r} is not a size: write a number of bytes or a text such as "1GiB"')
    match = _QUANTITY.fullmatch(value)
    if match is None:
        raise UnitError(
            f'{value!r} is not a size: write a whole number and a unit, such as "1GiB", "64MiB" or "500MB"'
        )
    number, unit = match.groups()
    if unit and unit not in _SIZE_UNITS:
        raise UnitError(f"{value!r} is not a size: {_size_unit_advice(number, unit)}")
    return _bounded(value, int(number) * _SIZE_UNITS.get(unit, 1))


def format_size(size_bytes: int) -> str:
    """The shortest exact text that `parse_size` turns back into `size_bytes`; powers of 1024 win a tie."""
    if size_bytes == 0:
        return "0B"
    exact = [f"{size_bytes // factor}{unit}" for unit, factor in _SIZE_UNITS.items() if size_bytes % factor == 0]
    return min(exact, key=len)  # min returns the first of equally short ones: powers of 1024 come first


def parse_duration_ms(value: object) -> int:
    """Number of milliseconds in "100ms", "30s", "5m", "72h" or "2d". A bare number is refused. Raises UnitError."""
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise UnitError(
            f'{value!r} is not a duration: write a whole number and a unit in quotes, such as "30s" or "72h"'
        )
    number, unit = match.groups()
    if unit not in _DURATION_UNITS_MS:
        units = ", ".join(_DURATION_UNITS_MS)
        problem = f"the unit {unit!r} is not known" if unit else "it has no unit"
        raise UnitError(f"{value!r} is not a duration: {problem}: write one of {units}")
    return _bounded(value, int(number) * _DURATION_UNITS_MS[unit])


def format_duration_ms(duration_ms: int) -> str:
    """The text in the largest unit that keeps `duration_ms` exact: "3d" for 72 h, "0s" for none."""
    if duration_ms == 0:
        return "0s"
    unit = next(u for u, factor in reversed(_DURATION_UNITS_MS.items()) if duration_ms % factor == 0)
    return f"{duration_ms // _DURATION_UNITS_MS[unit]}{unit}"


def _size_unit_advice(number: str, unit: str) -> str:
    wanted = unit.lower()
    for known in _SIZE_UNITS:
        if wanted == known.lower():
            return f'write "{number}{known}"'
    if len(unit) == 1 and wanted in "kmgtp":
        binary = f"{unit.upper()}iB"
        decimal = "kB" if wanted == "k" else f"{unit.upper()}B"
        return f'write "{number}{binary}" (powers of 1024) or "{number}{decimal}" (powers of 1000)'
    return f"the unit {unit!r} is not known: write one of B, KiB, MiB, GiB, TiB, PiB, kB, MB, GB, TB, PB"


def _bounded(value: object, amount: int) -> int:
    if amount < 0:
        raise UnitError(f"{value!r} is negative: write 0 or more")
    if amount > LARGEST:
        raise UnitError(f"{value!r} is too large: the largest value is {LARGEST}")
    return amount
