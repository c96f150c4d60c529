"""The findings in the status document."""

from bisect import bisect_right
from collections.abc import Sequence

from commitlogfs.store.findings import Finding, FindingCode, Severity
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.pool.inventory import gap_findings
from commitlogfs.store.segment import BaseOffset

_GAPS = (FindingCode.GAP, FindingCode.ACCEPTED_LOSS)
_CHANGES = (FindingCode.DISK_JOINS.value, FindingCode.DISK_LEFT.value)
"""Changes that this daemon completes: they are done when every disk records the list of members."""


def broker_findings(log: CommitLog) -> list[Finding]:
    """A finding if new segments were refused because a broker gives them another size."""
    if log.refused_size is None:
        return []
    message = (
        f"a new segment was to have {log.refused_size:,} bytes, and those of the pool have {log.segment_size:,}: "
        "the broker's mappedFileSizeCommitLog differs"
    )
    remedy = f"set mappedFileSizeCommitLog={log.segment_size} in the broker's configuration, and restart the broker"
    return [Finding(FindingCode.BROKER_SIZE_DIFFERS, Severity.WARNING, "", "", message, remedy)]


class StartupFindings:
    """Findings of the check with which the daemon started. No later ones are added, but a gap that was filled, or
    has expired, is not shown any more, nor is a change of the members that is complete."""

    def __init__(self, commitlog: CommitLog) -> None:
        self._commitlog = commitlog
        self._others = [finding.as_json() for finding in commitlog.findings if finding.code not in _GAPS]
        self._gaps = commitlog.catalog.gaps() if len(self._others) < len(commitlog.findings) else []
        """The gaps at the start."""
        self._is_changing = any(finding["code"] in _CHANGES for finding in self._others)
        self._composed: tuple[Sequence[tuple[BaseOffset, BaseOffset]], list[dict[str, str]]] = ([], self._others)

    def present(self, gaps: Sequence[tuple[BaseOffset, BaseOffset]]) -> list[dict[str, str]]:
        """`gaps` are those of the catalog, as of now."""
        left = [gap for gap in gaps if self._was_there(gap)] if self._gaps else []
        is_any_completed = self._is_changing and not self._commitlog.lagging()
        if is_any_completed:
            self._is_changing = False
            self._others = [finding for finding in self._others if finding["code"] not in _CHANGES]
        if is_any_completed or left != self._composed[0]:
            size, losses = self._commitlog.segment_size, self._commitlog.membership.losses
            self._composed = left, [*self._others, *(f.as_json() for f in gap_findings(left, size, losses))]
        return self._composed[1]

    def _was_there(self, gap: tuple[BaseOffset, BaseOffset]) -> bool:
        at = bisect_right(self._gaps, gap[0], key=lambda known: known[0]) - 1
        return at >= 0 and gap[1] <= self._gaps[at][1]
