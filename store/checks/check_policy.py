"""When a disk is checked, and what the answers prove. Pure.

A check is late on every busy machine, so lateness proves nothing. A disk is unresponsive if, at SILENT_OBSERVATIONS
observations one after the other, the check was blocked in the kernel and the device had ended no request since the
one before. A process that got no processor does not wait in the kernel. A machine that stood still for a minute has
made one observation in that time, not sixty.
"""

from typing import Final

from commitlogfs.store.checks.check import DiskCheck, Stage
from commitlogfs.store.slowness.load import EndedRequests

SILENT_OBSERVATIONS: Final = 10
"""Longer than schedulers let a request wait for others."""
SILENT_OBSERVATIONS_WITHOUT_COUNTERS: Final = 60
"""For a device without counters, which may be busy with other requests all the time."""
CHECKS_TO_CHANGE: Final = 2
"""Checks in a row that have to agree before a disk counts as unreadable, or as readable again."""


class CheckPolicy:
    """Memory of the checks of one disk."""

    def __init__(self, *, is_unreadable: bool = False) -> None:
        self.is_unreadable = is_unreadable
        """Whether checks could read nothing, and since then no two in a row everything that they tried."""
        self._last: EndedRequests | None = None
        self._has_skipped = False
        self._contrary = 0
        self._observed: EndedRequests | None = None
        self._silent = 0

    # --- when ----------------------------------------------------------------------------------------

    def is_due(self, ended: EndedRequests | None, *, is_suspected: bool) -> bool:
        """Whether to check now, by the device's counters.

        A device that has ended reads and writes since the last time is not asked, but never twice in a row:
        requests that failed count as ended.
        """
        before, self._last = self._last, ended
        is_busy = False
        if before is not None and ended is not None:
            is_busy = ended.reads > before.reads and ended.writes > before.writes
        self._has_skipped = is_busy and not (self._has_skipped or is_suspected or self.is_unreadable)
        return not self._has_skipped

    @property
    def is_confirming(self) -> bool:
        """Whether the latest check differs from what was known, so that the next one should come soon."""
        return self._contrary > 0

    # --- while there is no answer --------------------------------------------------------------------

    def begin(self, ended: EndedRequests | None) -> None:
        """A check begins."""
        self._observed, self._silent = ended, 0

    def observe(self, stage: Stage, ended: EndedRequests | None, *, is_blocked: bool) -> bool:
        """Observe a check that has no answer yet; whether the silence is a proof by now.

        `is_blocked`: its thread waits in the kernel, beyond the reach of signals.
        """
        before, self._observed = self._observed, ended
        self._silent = self._silent + 1 if is_blocked and not _has_moved(stage, before, ended) else 0
        needed = SILENT_OBSERVATIONS_WITHOUT_COUNTERS if ended is None else SILENT_OBSERVATIONS
        return self._silent >= needed

    # --- with the answer -----------------------------------------------------------------------------

    def record_reads(self, check: DiskCheck) -> bool:
        """Evaluate the blocks of a check; whether that changes `is_unreadable`.

        A check that could read only some of its blocks proves neither.
        """
        is_contrary = check.read and not check.failed if self.is_unreadable else check.failed and not check.read
        self._contrary = self._contrary + 1 if is_contrary else 0
        if self._contrary < CHECKS_TO_CHANGE:
            return False
        self._contrary = 0
        self.is_unreadable = not self.is_unreadable
        return True


def _has_moved(stage: Stage, before: EndedRequests | None, ended: EndedRequests | None) -> bool:
    """Whether the device has ended a request for which the check may have waited. Those of a frozen filesystem are
    reads, and a check that writes does not wait for them."""
    if before is None or ended is None:
        return False
    return ended.writes > before.writes or (stage is Stage.READING and ended.reads > before.reads)
