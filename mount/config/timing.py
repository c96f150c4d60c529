"""Times of the product that a test has changed: $COMMITLOGFS_TIMING, as docs/testing.md describes it.

It is a JSON object of sections and fields of store.timing.Timing, such as {"health": {"lost_after_s": 5.0}}.
"""

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn

from commitlogfs.console.errors import UsageError
from commitlogfs.store.timing import DEFAULT, Timing

VARIABLE: Final = "COMMITLOGFS_TIMING"


def timing_from(environ: Mapping[str, str]) -> Timing:
    """The times of a process with this environment: DEFAULT with the changes of the variable. Raises UsageError."""
    text = environ.get(VARIABLE, "")
    if not text:
        return DEFAULT
    try:
        changes = json.loads(text)
    except ValueError as error:
        _refuse("", f"not JSON ({error})")
    timing: Timing = _changed(
        DEFAULT, {name: _section(name, values) for name, values in _items("", changes, DEFAULT)}
    )
    return timing


def describe(timing: Timing) -> str:
    """The value of the variable that stands for these times; empty for DEFAULT."""
    changes: dict[str, dict[str, float]] = {}
    for name in _names(timing):
        usual, present = dataclasses.asdict(getattr(DEFAULT, name)), dataclasses.asdict(getattr(timing, name))
        changed = {key: value for key, value in present.items() if value != usual[key]}
        if changed:
            changes[name] = changed
    return json.dumps(changes) if changes else ""


def _section(name: str, values: object) -> Any:
    usual = getattr(DEFAULT, name)
    changes = {key: _number(f"{name}.{key}", value) for key, value in _items(name, values, usual)}
    try:
        return _changed(usual, changes)
    except ValueError as error:
        _refuse(name, str(error))


def _items(where: str, values: object, section: object) -> Iterable[tuple[str, object]]:
    """The members of a JSON object that stands for `section`, the one at `where`."""
    if not isinstance(values, dict):
        _refuse(where, "not an object; write {NAME: VALUE, ...}")
    names = _names(section)
    for key in values:
        if key not in names:
            kind = "field" if where else "section"
            _refuse(f"{where}.{key}" if where else key, f"unknown {kind}; write one of {', '.join(names)}")
    return values.items()


def _number(where: str, value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if 0 <= number < math.inf:
            return number
    _refuse(where, f"{json.dumps(value)} is not a time; write a number of seconds, at least 0")


def _names(section: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(section)]


def _changed(section: Any, changes: Mapping[str, Any]) -> Any:
    return dataclasses.replace(section, **changes)


def _refuse(where: str, text: str) -> NoReturn:
    raise UsageError(f"${VARIABLE}: {where}: {text}" if where else f"${VARIABLE}: {text}")
