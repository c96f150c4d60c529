"""The [retention] table: its keys, and the rules of forced deletion that follow from it. Pure.

`reserved` and `delete_when` are errors in a mode where they have no effect, as an operator would rely on an expiry
that does not happen. The other keys may be there in every mode, so that one edit (mode = "off", or punch = false)
is enough to stop something.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator

from commitlogfs.console.units import format_duration_ms, parse_duration_ms
from commitlogfs.mount.config.errors import Problem
from commitlogfs.mount.config.table import StrictTable
from commitlogfs.store.retention import Mode, RetentionRules, Trigger

SHORTEST_RESERVED_MS: Final = 3_600_000
"""The broker's unit is the hour. A "72s" that was meant as hours would remove the log."""
SHORTEST_INTERVAL_MS: Final = 1000
"""Fill levels are up to a second old, so a shorter cycle would see the same ones again."""
LONGEST_INTERVAL_MS: Final = 600_000
"""At 1 GB/s this is 600 GB, more than there is between `force` and `full` on most disks."""

_HOURS = re.compile(r"[0-9]{1,2}(;[0-9]{1,2})*")


def parse_hours(value: object) -> frozenset[int]:
    """Hours of the day from RocketMQ's text, "04" or "04;16". Raises ValueError with a message of one line.

    It is stricter than the broker, which deletes nothing for a blank or empty item, and never by age for 24.
    """
    if not isinstance(value, str) or _HOURS.fullmatch(value) is None:
        raise ValueError(f'{value!r} is not a list of hours; write them in quotes, such as "04" or "04;16"')
    hours = frozenset(map(int, value.split(";")))
    if max(hours) > 23:
        raise ValueError(f"{value!r}: hour {max(hours)} does not exist; write 00 to 23")
    return hours


def format_hours(hours: frozenset[int]) -> str:
    return ";".join(f"{hour:02d}" for hour in sorted(hours))


def _reserved(value_ms: int) -> int:
    if value_ms < SHORTEST_RESERVED_MS:
        shown, least = format_duration_ms(value_ms), format_duration_ms(SHORTEST_RESERVED_MS)
        raise ValueError(f"{shown} is too short; write at least {least}, the unit of fileReservedTime")
    return value_ms


def _interval(value_ms: int) -> int:
    shown = format_duration_ms(value_ms)
    if value_ms < SHORTEST_INTERVAL_MS:
        raise ValueError(f"{shown} is too short; write at least 1s, as fill levels are up to a second old")
    if value_ms > LONGEST_INTERVAL_MS:
        longest = format_duration_ms(LONGEST_INTERVAL_MS)
        raise ValueError(f"{shown} is too long; write at most {longest}, as disks could fill up within a cycle")
    return value_ms


def _batch(value: int) -> int:
    if value < 1:
        raise ValueError(f'{value} is too small; write at least 1, or mode = "off" to delete nothing')
    return value


_Duration = Annotated[int, BeforeValidator(parse_duration_ms)]
"""Milliseconds."""
_Hours = Annotated[frozenset[int], BeforeValidator(parse_hours)]


class RetentionTable(StrictTable):
    """The table as it is in the file. Defaults of keys other than `mode` are those of `RetentionRules`."""

    mode: Literal["cooperative", "filesystem", "off"] = "cooperative"
    reserved: Annotated[_Duration, AfterValidator(_reserved)] | None = None
    delete_when: _Hours | None = None
    force_after: _Duration | None = None
    grace: _Duration | None = None
    punch: bool | None = None
    batch: Annotated[int, AfterValidator(_batch)] | None = None
    interval: Annotated[_Duration, AfterValidator(_interval)] | None = None


_DURATIONS: Final = ("reserved", "force_after", "grace", "interval")
_OF_FILESYSTEM: Final = {"reserved": 'reserved = "72h"', "delete_when": 'delete_when = "04"'}


def retention_rules(table: RetentionTable, trigger: Trigger, problems: list[Problem]) -> RetentionRules:
    """The rules, with every default. Contradictions are added to `problems`."""
    found = list(_contradictions(table))
    if found:
        problems += found
        return RetentionRules(trigger=trigger)
    values: dict[str, Any] = {}
    for key in table.model_fields_set - {"mode"}:
        value = getattr(table, key)
        if key in _DURATIONS:
            values[f"{key}_s"] = value / 1000
        else:
            values[key] = value
    return RetentionRules(mode=Mode(table.mode), trigger=trigger, **values)


def _contradictions(table: RetentionTable) -> Iterator[Problem]:
    given = table.model_fields_set
    if table.mode == "filesystem":
        for key, example in _OF_FILESYSTEM.items():
            if key not in given:
                reason = "with mode = 'filesystem', commitlogfs expires segments by age"
                yield Problem(f"retention.{key}", f"missing ({reason}); add {example}")
    else:
        reason = "the broker expires segments itself" if table.mode == "cooperative" else "nothing is deleted"
        for key in _OF_FILESYSTEM:
            if key in given:
                text = f"has no effect with mode = {table.mode!r}, where {reason}"
                yield Problem(f"retention.{key}", f'{text}; remove it, or set mode = "filesystem"')
