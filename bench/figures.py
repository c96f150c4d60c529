"""Figures of a measurement: quantiles, ratios, targets, and the machine."""

import os
import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any


@dataclass(frozen=True, slots=True)
class Latencies:
    """Latencies of `count` calls, in milliseconds."""

    count: int
    p50_ms: float
    p99_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True)
class Target:
    """A limit (design.md) and the measured value, which must not exceed it."""

    name: str
    value: float
    limit: float
    unit: str

    @property
    def is_met(self) -> bool:
        return self.value < self.limit


def latencies(seconds: Sequence[float]) -> Latencies:
    """Nearest-rank quantiles: each is a measured value. Raises ValueError without values."""
    if not seconds:
        raise ValueError("no calls were measured")
    ordered = sorted(seconds)

    def rank(share: float) -> float:
        index = max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)
        return round(ordered[index] * 1000, 3)

    return Latencies(len(ordered), rank(0.5), rank(0.99), round(ordered[-1] * 1000, 3))


def median(values: Sequence[float]) -> float:
    return round(statistics.median(values), 4)


def environment() -> dict[str, Any]:
    """Properties of the machine that affect the figures."""
    names = ("commitlogfs", "pyfuse3", "trio", "pydantic", "typer")
    return {
        "taken_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "load_average": [round(value, 2) for value in os.getloadavg()],
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in names},
    }


def in_words(target: Target) -> str:
    """Its value and limit, in seconds or as a part of the whole, and whether it is met."""
    verdict = "met" if target.is_met else "missed"
    value = f"{target.value:.2f} s" if target.unit == "s" else f"{target.value:.2%}"
    limit = f"{target.limit:g} s" if target.unit == "s" else f"{target.limit:.0%}"
    return f"{target.name}: {value}, required < {limit}: {verdict}"


def target_as_json(target: Target) -> dict[str, Any]:
    return {**asdict(target), "met": target.is_met}
