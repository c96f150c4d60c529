"""A move at a given rate, in windows and when the rate changes, and the page cache before and after many moves."""

import itertools
import time
from pathlib import Path
from typing import Final

from commitlogfs.bench.catalog_figures import WrongResultError
from commitlogfs.bench.counter_windows import rates, sample, settled_after
from commitlogfs.bench.datapath_rounds import Tell
from commitlogfs.bench.datapath_settings import Settings
from commitlogfs.bench.moves.drained_pool import DrainedPool, drained_pool
from commitlogfs.bench.moves.figures import MoveFigures, RateChange
from commitlogfs.bench.moves.sizes import AFTER_CHANGE_S, FASTER, HOT_SEGMENTS, paced_segments
from commitlogfs.bench.page_cache import cached_pages_of, drop_from_cache, kept_pages, pages_of
from commitlogfs.bench.targets_disks import BenchDisks

_SETTLED_WINDOW_S: Final = 1.0
_SETTLED: Final = 0.1
"""Part by which the rate of such a window may differ from a new rate."""
_UNLIMITED: Final = 1 << 40


def measure_pace(work: Path, disks: BenchDisks, settings: Settings, tell: Tell, figures: MoveFigures) -> None:
    """Fills `figures`. Raises CommandFailedError, OSError, WrongResultError."""
    moved = range(paced_segments(settings))
    hot = range(moved.stop, moved.stop + HOT_SEGMENTS)
    with drained_pool(work / "pace", disks.paths, settings.broker_segment_bytes) as pool:
        tell(f"move-rate: {len(moved)} segments are made")
        pool.fill_source_only()
        pool.make_segments(moved)
        pool.fill_others_only()
        pool.make_segments(hot)
        for path in pool.located(moved):
            drop_from_cache(path)
        tell(f"move-rate: {settings.move_windows} windows of {settings.move_window_s:g} s")
        _measure_windows(pool, settings, figures)
        _measure_changes(pool, settings, tell, figures)
        pool.cancel()
        tell("move-cache: all other segments are moved")
        _measure_cache(pool, work / "control", moved, hot, figures)


def _measure_cache(pool: DrainedPool, control: Path, moved: range, hot: range, figures: MoveFigures) -> None:
    cold = [path for path in pool.located(moved) if path.is_relative_to(pool.source)]
    figures.segment_size, figures.moved_segments = pool.segment_size, len(cold)
    pool.await_checksums(hot)

    def move_all() -> None:
        pool.drain(_UNLIMITED)
        pool.wait_until(lambda: pool.segments_to_move() == 0 and not pool.is_moving(), "all segments are moved")

    figures.hot = kept_pages(pool.located(hot), control, move_all)
    copies = [next(path for disk in pool.others if (path := disk / old.name).exists()) for old in cold]
    figures.copied_pages, figures.copied_pages_cached = pages_of(copies), cached_pages_of(copies)


def _measure_windows(pool: DrainedPool, settings: Settings, figures: MoveFigures) -> None:
    figures.rate, figures.window_s = settings.move_rate, settings.move_window_s
    pool.drain(settings.move_rate)
    pool.wait_until(pool.is_moving, "a move begins")
    samples = sample(pool.read_bytes, settings.move_windows * settings.move_window_s)
    figures.measured = rates(samples, settings.move_window_s)
    _require_unfinished(pool)


def _measure_changes(pool: DrainedPool, settings: Settings, tell: Tell, figures: MoveFigures) -> None:
    both = (settings.move_rate, settings.move_rate * FASTER)
    steps = itertools.pairwise(itertools.islice(itertools.cycle(both), settings.move_changes + 1))
    for former, rate in steps:
        tell(f"move-rate: from {former / 1e6:.1f} to {rate / 1e6:.1f} MB/s")
        pool.drain(rate)
        changed_s = time.monotonic()
        samples = sample(pool.read_bytes, AFTER_CHANGE_S)
        seconds = settled_after(samples, samples[0].at_s, rate, window_s=_SETTLED_WINDOW_S, tolerance=_SETTLED)
        if seconds is not None:
            seconds = round(samples[0].at_s - changed_s + seconds, 3)
        figures.changes.append(RateChange(former, rate, seconds))
        _require_unfinished(pool)


def _require_unfinished(pool: DrainedPool) -> None:
    if not pool.segments_to_move():
        raise WrongResultError("all segments were moved before the rate was measured")
