"""Lanes of the suite: which tests run together, as their markers say (docs/testing.md)."""

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePath

GATE = "gate"
LANES = ("soak", "timing", "full")
"""Markers that take a test out of the gate, the strongest first."""


def lane_of(markers: Iterable[str]) -> str:
    """The lane of a test with these markers: the strongest of `LANES`, else the gate."""
    return next((lane for lane in LANES if lane in set(markers)), GATE)


def room_of(path: PurePath) -> str:
    """`tests/mounted` for a test file anywhere below it; `tests` for one directly in it. `path` is relative to the
    project's root."""
    return "/".join(path.parts[: min(2, len(path.parts) - 1)])


class Times:
    """Seconds that each test took, in this run and in those before."""

    def __init__(self, path: Path) -> None:
        """`path`: a JSON file {test: seconds}, where a test is named as pytest does; it need not exist."""
        self._path = path
        self._seconds: dict[str, float] = defaultdict(float)

    def add(self, test: str, seconds: float) -> None:
        """Count one phase (setup, call or teardown) of a test of this run."""
        self._seconds[test] += seconds

    def save(self) -> None:
        """Keep those of this run for the order of the next one. Tests that did not run keep their former time."""
        merged = {**self._former(), **{test: round(seconds, 2) for test, seconds in self._seconds.items()}}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps(merged, indent=0, sort_keys=True) + "\n")
        new.replace(self._path)

    def former_by_file(self) -> dict[str, float]:
        """Seconds of each test file in the runs before; empty if there was none, or if they cannot be read."""
        return _added(self._former(), lambda test: test.partition("::")[0])

    def by_room(self) -> dict[str, float]:
        """Seconds of each room in this run."""
        return _added(self._seconds, lambda test: room_of(PurePath(test.partition("::")[0])))

    def _former(self) -> Mapping[str, float]:
        try:
            read = json.loads(self._path.read_text())
            return {str(test): float(seconds) for test, seconds in read.items()}
        except (OSError, ValueError, AttributeError):
            return {}


def _added(seconds: Mapping[str, float], key: Callable[[str], str]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for test, each in seconds.items():
        sums[key(test)] += each
    return dict(sums)
