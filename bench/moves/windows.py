"""Rates in windows of time, from samples of a byte counter. Pure."""

import bisect
from collections.abc import Sequence
from typing import NamedTuple


class Sample(NamedTuple):
    at_s: float
    done: int
    """Bytes until then. Never falls."""


def count_at(samples: Sequence[Sample], at_s: float) -> float:
    """Bytes until `at_s`, in proportion to the time between two samples. Raises ValueError outside of them."""
    if not samples or not samples[0].at_s <= at_s <= samples[-1].at_s:
        raise ValueError(f"no sample around {at_s:.3f} s")
    after = bisect.bisect_left(samples, at_s, key=lambda sample: sample.at_s)
    if samples[after].at_s == at_s:
        return samples[after].done
    (from_s, low), (to_s, high) = samples[after - 1], samples[after]
    return low + (high - low) * (at_s - from_s) / (to_s - from_s)


def rate_in(samples: Sequence[Sample], from_s: float, window_s: float) -> float:
    """Bytes per second in the window that begins at `from_s`. Raises ValueError outside of the samples."""
    return (count_at(samples, from_s + window_s) - count_at(samples, from_s)) / window_s


def rates(samples: Sequence[Sample], window_s: float) -> list[float]:
    """Bytes per second in each whole window, one after the other from the first sample on."""
    begin_s, end_s = samples[0].at_s, samples[-1].at_s
    count = int((end_s - begin_s + 1e-9) / window_s)
    return [rate_in(samples, min(begin_s + n * window_s, end_s - window_s), window_s) for n in range(count)]


def settled_after(
    samples: Sequence[Sample], changed_s: float, rate: float, *, window_s: float, tolerance: float
) -> float | None:
    """Seconds from `changed_s` until the first window with the new rate begins; None if there is no such window.

    A window has the rate if its own differs by at most the part `tolerance`. Windows begin at each sample.
    """
    for begin_s in (changed_s, *(sample.at_s for sample in samples if sample.at_s > changed_s)):
        if begin_s + window_s > samples[-1].at_s:
            return None
        if abs(rate_in(samples, begin_s, window_s) / rate - 1) <= tolerance:
            return begin_s - changed_s
    return None
