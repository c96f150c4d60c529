"""One segment that is missing in a log, or damaged: its copies are checked, and the daemon takes in the first right
one."""

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from commitlogfs.console.errors import RefusedError, UnreachableError
from commitlogfs.mount.location import control_socket
from commitlogfs.mount.location.control_socket import ControlError
from commitlogfs.mount.location.which_mount import Target
from commitlogfs.mount.restoring.own_log import OwnLog
from commitlogfs.mount.restoring.places import Place, UnreadablePlaceError
from commitlogfs.store.scrub.verdict import Kind
from commitlogfs.store.sealed_segment import SealedSegment, UnsoundSegmentError, check_sealed
from commitlogfs.store.segment import BaseOffset

_POLL_S: Final = 0.1
_PATIENCE_S: Final = 60.0
"""For a daemon that does not answer, such as one that was killed and is replaced."""
_MS_IN_NS: Final = 1_000_000
_UNREPAIRABLE: Final = "cannot be repaired by a copy"

OnStep = Callable[[str, int], None]
"""Gets the step that the segment is in, and the number of bytes that this step has processed."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged segment, as the daemon reports it."""

    disk: str
    kind: str
    reason: str
    """Why no copy can repair it; empty if one can."""
    xxh3: str | None
    """Checksum of the right content; None if it is not known."""
    needs_chain: bool
    """Whether a copy with this checksum has to have a right chain of records, too."""
    equal: tuple[tuple[int, int], ...]
    """Ranges of positions in which a right copy is equal to the damaged segment."""


@dataclass(slots=True)
class Outcome:
    """Result of the attempts to restore or repair one segment, or of their dry run."""

    base_offset: BaseOffset
    damage: Damage | None = None
    """None if it was missing."""
    place: str | None = None
    """The place that it came from, or would come from; None if it stays missing or damaged."""
    failures: list[str] = field(default_factory=list)
    """Why copies of it were not taken."""
    fault: str = ""
    """Damage that the right copy has, because the segment had it when it was sealed; empty usually."""

    @property
    def segment(self) -> str:
        return f"{self.base_offset:020d}"


class Restorer:
    """Fills gaps in the log of one mount, and repairs its segments."""

    def __init__(
        self,
        target: Target,
        segment_size: int,
        log: OwnLog,
        proven: Collection[str],
        rate: int,
        spool: str | None,
        *,
        dry_run: bool = False,
    ) -> None:
        """`proven` are the names of places that were compared with the log. `rate` in bytes per second, 0 for the
        default; `spool`: directory for what does not lie on a local filesystem. `dry_run`: each copy is judged as
        otherwise, and not handed in."""
        self._target = target
        self._size = segment_size
        self._log = log
        self._proven = proven
        self._rate = rate
        self._spool = spool
        self._is_dry_run = dry_run
        self._token = secrets.token_hex(8)
        """The daemon cancels what was begun with it."""
        self._begun: BaseOffset | None = None

    def restore(
        self,
        base_offset: BaseOffset,
        damage: Damage | None,
        places: Sequence[Place],
        failures: Sequence[str],
        on_step: OnStep,
    ) -> Outcome:
        """Take in the first right copy of a segment that is missing, or damaged. `failures` are known already, of
        other places. Raises UnreachableError, ControlError."""
        if damage is not None and damage.reason:
            return Outcome(base_offset, damage, None, [f"{_UNREPAIRABLE}: {damage.reason}"])
        outcome = Outcome(base_offset, damage, failures=list(failures))
        for place in places:
            try:
                with place.open(base_offset, self._spool, lambda done: on_step("fetching", done)) as fd:
                    checked = self._check(fd, base_offset, damage, on_step)
                    failure = self._refusal(fd, place, base_offset, damage, checked)
                    if not failure and not self._is_dry_run:
                        failure = self._hand_in(fd, base_offset, damage, checked, on_step)
            except (UnreadablePlaceError, UnsoundSegmentError) as error:
                failure = str(error)
            except RefusedError as error:  # by the daemon, which would refuse every copy
                outcome.failures.append(f"{place.name}: {error}")
                return outcome
            if not failure:
                outcome.place, outcome.fault = place.name, checked.fault
                return outcome
            outcome.failures.append(f"{place.name}: {failure}")
        return outcome

    def cancel(self) -> None:
        """The segment under way stays missing, if this command has begun it. Does nothing if no daemon answers."""
        if self._begun is None:
            return
        with contextlib.suppress(UnreachableError, RefusedError, ControlError):
            self._ask("restore-cancel", base_offset=self._begun, token=self._token)

    def _check(self, fd: int, base_offset: BaseOffset, damage: Damage | None, on_step: OnStep) -> SealedSegment:
        """Raises UnsoundSegmentError, UnreadablePlaceError."""
        digest = None if damage is None or damage.needs_chain else damage.xxh3
        return check_sealed(
            partial(_read_once, fd),
            base_offset,
            self._size,
            lambda done: on_step("checking", done),
            right=None if digest is None else bytes.fromhex(digest),
            may_end_early=damage is not None,
        )

    def _refusal(
        self, fd: int, place: Place, base_offset: BaseOffset, damage: Damage | None, checked: SealedSegment
    ) -> str:
        """Why a copy whose chain is right is not taken; empty if it is. Raises UnreadablePlaceError."""
        if damage is not None and damage.xxh3 == checked.digest.hex():
            return ""  # it is this segment, wherever it comes from
        failure = "" if place.name in self._proven else self._contradiction(fd, base_offset, checked)
        return failure or self._difference(fd, base_offset, damage, checked)

    def _contradiction(self, fd: int, base_offset: BaseOffset, checked: SealedSegment) -> str:
        head = partial(_head, fd)
        return self._log.contradiction(base_offset, head, checked.last_store_timestamp_ms)

    def _difference(self, fd: int, base_offset: BaseOffset, damage: Damage | None, checked: SealedSegment) -> str:
        """How a sound copy differs from what is known of the damaged segment; empty if it does not."""
        if damage is None:
            return ""
        if damage.xxh3 is not None:
            return "its checksum is not the one that the segment had when it was sealed"
        if checked.zeros_begin is not None and not _covers(damage.equal, checked.zeros_begin, self._size):
            return (
                f"log offset {base_offset + checked.zeros_begin}: zeros up to the end, and nothing shows that the "
                "segment ended there"
            )
        has_bad_blocks = damage.kind == Kind.UNREADABLE.value
        read = partial(_read_once, fd)
        position = self._log.first_difference(base_offset, read, damage.equal, has_bad_blocks=has_bad_blocks)
        if position is None:
            return ""
        return f"log offset {base_offset + position}: differs from the segment outside of the known damage"

    def _hand_in(
        self, fd: int, base_offset: BaseOffset, damage: Damage | None, checked: SealedSegment, on_step: OnStep
    ) -> str:
        """Why the daemon has not taken the segment in; empty if it has."""
        has_begun, answered, repairs = False, time.monotonic(), damage is not None
        while True:
            try:
                state = self._ask("restore-state", base_offset=base_offset, repairs=repairs)
                if state["state"] == "done":
                    return ""
                if state["state"] == "failed" and has_begun:
                    reason: str = state["reason"]
                    return reason
                if state["state"] != "running":
                    self._begin(fd, base_offset, checked, repairs=repairs)
                    has_begun = True
                on_step("copying" if state["done_bytes"] < self._size else "verifying", state["done_bytes"])
                answered = time.monotonic()
            except UnreachableError:
                if time.monotonic() - answered > _PATIENCE_S:
                    raise
            time.sleep(_POLL_S)

    def _begin(self, fd: int, base_offset: BaseOffset, checked: SealedSegment, *, repairs: bool) -> None:
        # A broker takes a segment's mtime for the time of its last message.
        mtime_ns = checked.last_store_timestamp_ms * _MS_IN_NS or os.fstat(fd).st_mtime_ns
        self._begun = base_offset
        self._ask(
            "restore-segment",
            [fd],
            base_offset=base_offset,
            mtime_ns=self._log.bound_mtime_ns(base_offset, mtime_ns),
            xxh3=checked.digest.hex(),
            rate=self._rate,
            token=self._token,
            repairs=repairs,
        )

    def _ask(self, verb: str, descriptors: Sequence[int] = (), **arguments: str | int) -> dict[str, Any]:
        timeout_s = control_socket.PEER_TIMEOUT_S
        answer = control_socket.ask_with(self._target.socket, verb, descriptors, timeout_s, **arguments)
        if "refused" in answer:
            raise RefusedError(f"{self._target.name}: {answer['refused']}")
        return answer


def _covers(ranges: Collection[tuple[int, int]], begin: int, end: int) -> bool:
    """Whether one of the ranges, which do not touch each other, has all these positions."""
    return any(first <= begin and end <= last for first, last in ranges)


def _head(fd: int, length: int) -> bytes:
    return os.pread(fd, length, 0)


def _read_once(fd: int, position: int, length: int) -> bytes:
    """Bytes of a copy, which leave the page cache again: they must not push a broker's pages out. Raises
    UnreadablePlaceError."""
    try:
        data = os.pread(fd, length, position)
        os.posix_fadvise(fd, position, length, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        raise UnreadablePlaceError(f"position {position}: {os.strerror(error.errno or 0)}") from error
    return data
