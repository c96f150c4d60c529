"""How long a scrub waits for a disk that cannot be read. Pure."""

from commitlogfs.store.scrub.progress import Progress
from commitlogfs.store.segment import BaseOffset
from commitlogfs.store.timing import ScrubTiming


class Patience:
    """Time for which a disk was to be read and returned nothing. Only a segment that is done ends it, so a disk
    that fails again and again before the end of a segment is given up, too."""

    def __init__(self, timing: ScrubTiming) -> None:
        self._timing = timing
        self._observed_s: float | None = None
        self._done: tuple[tuple[int, int], BaseOffset] | None = None
        self._read_bytes = 0
        self._waited_s = 0.0

    def is_over(self, now_s: float, progress: Progress, read_bytes: int, *, is_idle: bool) -> bool:
        """Whether the disk is to be given up. Call it at intervals. `now_s` is monotonic; `read_bytes` are those of
        the run, of the segment at hand, too; `is_idle` is whether the disk is not to be read now."""
        longest_s = self._timing.longest_step_s
        step_s = 0.0 if self._observed_s is None else min(now_s - self._observed_s, longest_s)
        self._observed_s = now_s
        done = progress.run.number, progress.position
        if done != self._done:
            self._done, self._waited_s = done, 0.0
        elif not is_idle and read_bytes == self._read_bytes:
            self._waited_s += step_s
        self._read_bytes = read_bytes
        return self._waited_s >= self._timing.give_up_s
