"""The [scrub] table: when the daemon reads the sealed segments by itself, and how fast. Pure."""

import re
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator

from commitlogfs.console.units import format_duration_ms, parse_duration_ms, parse_size
from commitlogfs.mount.config.table import StrictTable
from commitlogfs.store.scrub.schedule import DEFAULT_EVERY_S, ScrubRules

SHORTEST_EVERY_MS: Final = 3_600_000
"""The pause after each scrub. In a shorter one, hardly a segment could rot."""
_WINDOW = re.compile(r"([0-9]{1,2})-([0-9]{1,2})")
_HOURS_A_DAY: Final = 24


def parse_window(value: object) -> frozenset[int]:
    """Hours of the day from "22-06", which is from 22:00 to 06:00; none for "". Raises ValueError with a message of
    one line."""
    if value == "":
        return frozenset()
    match = _WINDOW.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f'{value!r} is not a window; write its first and last hour in quotes, such as "22-06"')
    begin, end = map(int, match.groups())
    if begin >= _HOURS_A_DAY or end > _HOURS_A_DAY:
        raise ValueError(f"{value!r}: no such hour; write 00 to 23, or 24 for the end")
    if begin == end:
        raise ValueError(f'{value!r} has no hour; write "" for the whole day')
    length = (end - begin) % _HOURS_A_DAY or _HOURS_A_DAY
    return frozenset((begin + number) % _HOURS_A_DAY for number in range(length))


def format_window(hours: frozenset[int]) -> str:
    """The text for hours without a gap."""
    if len(hours) in (0, _HOURS_A_DAY):
        return ""
    begin = next(hour for hour in sorted(hours) if (hour - 1) % _HOURS_A_DAY not in hours)
    return f"{begin:02d}-{(begin + len(hours)) % _HOURS_A_DAY:02d}"


def _parse_every(value: object) -> int:
    """Milliseconds; 0 for "". Raises ValueError."""
    return 0 if value == "" else parse_duration_ms(value)


def _every(value_ms: int) -> int:
    if 0 < value_ms < SHORTEST_EVERY_MS:
        shown, least = format_duration_ms(value_ms), format_duration_ms(SHORTEST_EVERY_MS)
        raise ValueError(f'{shown} is too short; write at least {least}, or "" for no scrub by itself')
    return value_ms


class ScrubTable(StrictTable):
    """The table as it is in the file. Defaults are those of `ScrubRules`."""

    every: Annotated[int, BeforeValidator(_parse_every), AfterValidator(_every)] = round(DEFAULT_EVERY_S * 1000)
    rate: Annotated[int, BeforeValidator(lambda value: 0 if value == "" else parse_size(value))] = 0
    window: Annotated[frozenset[int], BeforeValidator(parse_window)] = frozenset()


def scrub_rules(table: ScrubTable) -> ScrubRules:
    return ScrubRules(table.every / 1000, table.rate, table.window)
