"""Records the decisions of a daemon. A journal that cannot be written is one log event, and no request fails."""

import logging
from pathlib import Path
from typing import Any, NamedTuple

from commitlogfs.fusefs.kernel.decisions import Placement
from commitlogfs.mount.journal import ring
from commitlogfs.mount.journal.entries import Entry, Kind, decode, encode, facts_of, shortened
from commitlogfs.mount.journal.file import JournalFile, open_journal
from commitlogfs.store.clock import Clock
from commitlogfs.store.events import log_event
from commitlogfs.store.placement.standing import Standing

log = logging.getLogger(__name__)


class DiskStanding(NamedTuple):
    """State of a disk, and why it gets no new segment, as in the status document."""

    state: str
    reason: str


class Journal:
    """Implements fusefs.kernel.decisions.Decisions. Records nothing before `open` and after a failure."""

    def __init__(self, clock: Clock, repeat_s: float) -> None:
        """`repeat_s`: how long an equal refusal or failure is only counted."""
        self._clock = clock
        self._repeat_s = repeat_s
        self._file: JournalFile | None = None
        self._repeats: dict[Kind, tuple[object, float, int]] = {}
        """Latest repeatable entry of a kind: what it says, when it was recorded, and its repeats since."""
        self.disks: dict[str, DiskStanding] = {}
        """Latest recorded standing of each disk, by path; a former daemon may have recorded it."""

    def open(self, path: Path, pool_id: str) -> None:
        """Continue the journal of this mount, or begin one."""
        try:
            self._file = open_journal(path, pool_id)
            content = self._file.read()
        except OSError as error:
            self._fail(error)
            return
        for record in ring.newest_first(content):
            if f'"{Kind.DISK.value}"'.encode() in record.payload:
                entry = decode(record)
                if entry is not None and entry.kind is Kind.DISK and entry.disk is not None:
                    standing = DiskStanding(entry.facts["state"], entry.facts["reason"])
                    self.disks.setdefault(entry.disk, standing)

    def read(self) -> bytes:
        """Content of the journal now; empty without one. Blocks. Raises OSError."""
        return b"" if self._file is None else self._file.read()

    def remove(self) -> None:
        """The mount has ended."""
        if self._file is not None:
            try:
                self._file.remove()
            except OSError as error:
                self._fail(error)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    # --- decisions -----------------------------------------------------------------------------------

    def placed(self, placement: Placement) -> None:
        chosen = next((one for one in placement.standings if one.disk == placement.disk), None)
        facts = {
            "policy": placement.policy,
            "after": placement.after,
            "fallback": placement.is_fallback,
            "used_percent": None if chosen is None else chosen.used_percent,
            "free_bytes": None if chosen is None else chosen.available_bytes,
            "passed_over": _refusing(placement.standings),
            "failures": [shortened(failure) for failure in placement.failures],
        }
        self._record(Kind.PLACED, placement.segment, placement.disk, facts)

    def refused(self, segment: bytes, why: str, standings: tuple[Standing, ...]) -> None:
        reasons = tuple((standing.disk, standing.reason) for standing in standings)
        facts = {"why": shortened(why), "passed_over": _refusing(standings)}
        self._record_once(Kind.REFUSED, (segment, reasons), segment, None, facts)

    def removed(self, segment: bytes, disk: str, reason: str, why: str | None) -> None:
        self._record(Kind.REMOVED, segment, disk, {"reason": reason, "why": why and shortened(why)})

    def removal_failed(self, segment: bytes, disk: str, why: str) -> None:
        self._record_once(Kind.REMOVAL_FAILED, (segment, why), segment, disk, {"why": shortened(why)})

    def copied(self, kind: str, segment: bytes, source: str, target: str) -> None:
        self._record(Kind(kind), segment, target, {"source": source})

    def copy_failed(self, segment: bytes, source: str, target: str, why: str) -> None:
        facts = {"source": source, "why": shortened(why)}
        self._record_once(Kind.COPY_FAILED, (segment, source, target, why), segment, target, facts)

    def given_up(self, segment: bytes, disk: str, why: str) -> None:
        self._record(Kind.GIVEN_UP, segment, disk, {"why": shortened(why)})

    # --- disks and daemons ---------------------------------------------------------------------------

    def disk_seen(self, state: str, standing: Standing) -> None:
        """The present state of a disk; recorded if it differs from the one before."""
        former, now = self.disks.get(standing.disk), DiskStanding(state, standing.reason)
        if former == now:
            return
        self.disks[standing.disk] = now
        facts = facts_of(standing)
        del facts["disk"]
        facts |= {
            "state": state,
            "former_state": None if former is None else former.state,
            "former_reason": None if former is None else former.reason,
        }
        self._record(Kind.DISK, None, standing.disk, facts)

    def begun(self, kind: Kind, pid: int, segment_size: int) -> None:
        """A daemon serves the mount from now on."""
        self._record(kind, None, None, {"pid": pid, "segment_size": segment_size})

    # --- writing -------------------------------------------------------------------------------------

    def _record_once(
        self, kind: Kind, key: object, segment: bytes, disk: str | None, facts: dict[str, Any]
    ) -> None:
        """Repeats are only counted for `repeat_s`; the next entry shows how many there were."""
        now_s = self._clock.monotonic()
        former, recorded_s, repeats = self._repeats.get(kind, (None, 0.0, 0))
        if former == key and now_s - recorded_s < self._repeat_s:
            self._repeats[kind] = (former, recorded_s, repeats + 1)
            return
        self._repeats[kind] = (key, now_s, 0)
        if former == key and repeats:
            facts["repeats"] = repeats
        self._record(kind, segment, disk, facts)

    def _record(self, kind: Kind, segment: bytes | None, disk: str | None, facts: dict[str, Any]) -> None:
        if self._file is None:
            return
        name = None if segment is None else segment.decode(errors="backslashreplace")
        try:
            self._file.append(encode(Entry(0, self._clock.wall(), kind, name, disk, facts)))
        except (OSError, ValueError) as error:
            self._fail(error)

    def _fail(self, error: OSError | ValueError) -> None:
        log_event(log, logging.WARNING, "journal_unusable", reason=str(error))
        self.close()


def _refusing(standings: tuple[Standing, ...]) -> list[dict[str, Any]]:
    return [facts_of(standing) for standing in standings if standing.reason]
