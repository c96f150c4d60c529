"""Interleaved rounds: in each, every target is measured once, in another order each time.

A ratio compares runs of the same round only, which had the same state of the machine.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from commitlogfs.bench.figures import median
from commitlogfs.bench.targets import NATIVE

T = TypeVar("T")
Tell = Callable[[str], None]


@dataclass(slots=True)
class Series:
    """Results of one workload, by target and round; more is better, unless the unit is one of time."""

    workload: str
    unit: str
    about: str
    baseline: str = NATIVE
    """The target that the others are compared with."""
    values: dict[str, list[float]] = field(default_factory=dict)
    details: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, target: str, value: float, detail: dict[str, Any] | None = None) -> None:
        self.values.setdefault(target, []).append(round(value, 2))
        if detail is not None:
            self.details.setdefault(target, []).append(detail)

    def ratios(self, target: str, baseline: str | None = None) -> list[float]:
        """One ratio per round, by default to the baseline; empty if one of the two was not measured."""
        pairs = zip(self.values.get(target, []), self.values.get(baseline or self.baseline, []), strict=False)
        return [round(value / base, 4) for value, base in pairs if base]

    def ratio(self, target: str, baseline: str | None = None) -> float | None:
        found = self.ratios(target, baseline)
        return median(found) if found else None

    def as_json(self) -> dict[str, Any]:
        return {
            "workload": self.workload,
            "unit": self.unit,
            "about": self.about,
            "baseline": self.baseline,
            "targets": {
                target: {
                    "values": values,
                    "median": median(values),
                    "min": min(values),
                    "max": max(values),
                    "ratios": self.ratios(target),
                    "ratio": self.ratio(target),
                    **({"details": self.details[target]} if target in self.details else {}),
                }
                for target, values in self.values.items()
            },
        }


@dataclass(slots=True)
class Collected:
    """The figures measured so far. A later failure does not remove them."""

    series: list[Series] = field(default_factory=list)
    about: dict[str, str] = field(default_factory=dict)
    """Description of each target."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Targets that are not measured, with the reason."""


def in_turn(items: Sequence[T], turn: int) -> list[T]:
    """The order of one round. Over the rounds (twice as many as items, if their number is odd) each item follows
    each other item equally often, so that after-effects such as writeback affect all equally (Williams 1949)."""
    count = len(items)
    zigzag = [(index + 1) // 2 if index % 2 else -(index // 2) for index in range(count)]
    order = [items[(place + turn) % count] for place in zigzag]
    return order[::-1] if count % 2 and turn // count % 2 else order
