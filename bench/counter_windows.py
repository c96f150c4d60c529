"""Rates in windows of time, from samples of a byte counter."""

import bisect
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

_SAMPLE_S: Final = 0.01


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


def busy_rate(samples: Sequence[Sample]) -> float:
    """Bytes per second from the sample after which the counter grows first until that in which it has its end.
    Raises ValueError if it does not grow twice."""
    grown = [after.at_s for before, after in itertools.pairwise(samples) if after.done > before.done]
    if len(grown) < 2:
        raise ValueError("the counter has not grown")
    # What was counted until the first growth had begun at an unknown time.
    first = next(one.done for one in samples if one.at_s == grown[0])
    return (samples[-1].done - first) / (grown[-1] - grown[0])


def sample(count: Callable[[], int], seconds: float) -> list[Sample]:
    """Samples of a counter over so long, or a little longer."""
    return sample_while(count, lambda samples: samples[-1].at_s < samples[0].at_s + seconds)


def sample_while(count: Callable[[], int], goes_on: Callable[[Sequence[Sample]], bool]) -> list[Sample]:
    """Samples as long as `goes_on`, which gets those until now."""
    samples = [Sample(time.monotonic(), count())]
    while goes_on(samples):
        time.sleep(_SAMPLE_S)
        samples.append(Sample(time.monotonic(), count()))
    return samples
