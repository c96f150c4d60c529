"""One segment that is missing in a log: its copies are checked, and the daemon takes the first sound one in."""

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from commitlogfs.console.errors import RefusedError, UnreachableError
from commitlogfs.mount.location import control_socket
from commitlogfs.mount.location.control_socket import ControlError
from commitlogfs.mount.location.which_mount import Target
from commitlogfs.mount.restoring.own_log import OwnLog
from commitlogfs.mount.restoring.places import Place, UnreadablePlaceError
from commitlogfs.store.sealed_segment import SealedSegment, UnsoundSegmentError, check_sealed
from commitlogfs.store.segment import BaseOffset

_POLL_S: Final = 0.1
_PATIENCE_S: Final = 60.0
"""For a daemon that does not answer, such as one that was killed and is replaced."""
_MS_IN_NS: Final = 1_000_000

OnStep = Callable[[str, int], None]
"""Gets the step that the segment is in, and the number of bytes that this step has processed."""


@dataclass(slots=True)
class Outcome:
    """Result of the attempts to restore one segment."""

    base_offset: BaseOffset
    place: str | None = None
    """The place that it came from; None if it is still missing."""
    failures: list[str] = field(default_factory=list)
    """Why copies of it were not taken."""

    @property
    def segment(self) -> str:
        return f"{self.base_offset:020d}"


class Restorer:
    """Fills gaps in the log of one mount."""

    def __init__(
        self,
        target: Target,
        segment_size: int,
        log: OwnLog,
        proven: Collection[str],
        rate: int,
        spool: str | None,
    ) -> None:
        """`proven` are the names of places that were compared with the log. `rate` in bytes per second, 0 for the
        default; `spool`: directory for what does not lie on a local filesystem."""
        self._target = target
        self._size = segment_size
        self._log = log
        self._proven = proven
        self._rate = rate
        self._spool = spool
        self._token = secrets.token_hex(8)
        """The daemon cancels what was begun with it."""
        self._begun: BaseOffset | None = None

    def restore(self, base_offset: BaseOffset, places: Sequence[Place], on_step: OnStep) -> Outcome:
        """Take in the first sound copy of a segment. Raises UnreachableError, ControlError."""
        outcome = Outcome(base_offset)
        for place in places:
            try:
                with place.open(base_offset, self._spool, lambda done: on_step("fetching", done)) as fd:
                    checked = self._check(fd, base_offset, on_step)
                    failure = "" if place.name in self._proven else self._foreign_host(fd, base_offset)
                    failure = failure or self._hand_in(fd, base_offset, checked, on_step)
            except (UnreadablePlaceError, UnsoundSegmentError) as error:
                failure = str(error)
            except RefusedError as error:  # by the daemon, which would refuse every copy
                outcome.failures.append(f"{place.name}: {error}")
                return outcome
            if not failure:
                outcome.place = place.name
                return outcome
            outcome.failures.append(f"{place.name}: {failure}")
        return outcome

    def cancel(self) -> None:
        """The segment under way stays missing, if this command has begun it. Does nothing if no daemon answers."""
        if self._begun is None:
            return
        with contextlib.suppress(UnreachableError, RefusedError, ControlError):
            self._ask("restore-cancel", base_offset=self._begun, token=self._token)

    def _check(self, fd: int, base_offset: BaseOffset, on_step: OnStep) -> SealedSegment:
        def read(position: int, length: int) -> bytes:
            try:
                data = os.pread(fd, length, position)
                # The pages are read once more, past the cache: they must not push a broker's pages out.
                os.posix_fadvise(fd, position, length, os.POSIX_FADV_DONTNEED)
            except OSError as error:
                raise UnreadablePlaceError(f"position {position}: {os.strerror(error.errno or 0)}") from error
            return data

        return check_sealed(read, base_offset, self._size, lambda done: on_step("checking", done))

    def _foreign_host(self, fd: int, base_offset: BaseOffset) -> str:
        return self._log.foreign_host(base_offset, lambda most: os.pread(fd, most, 0))

    def _hand_in(self, fd: int, base_offset: BaseOffset, checked: SealedSegment, on_step: OnStep) -> str:
        """Why the daemon has not taken the segment in; empty if it has."""
        has_begun, answered = False, time.monotonic()
        while True:
            try:
                state = self._ask("restore-state", base_offset=base_offset)
                if state["state"] == "done":
                    return ""
                if state["state"] == "failed" and has_begun:
                    reason: str = state["reason"]
                    return reason
                if state["state"] != "running":
                    self._begin(fd, base_offset, checked)
                    has_begun = True
                on_step("copying" if state["done_bytes"] < self._size else "verifying", state["done_bytes"])
                answered = time.monotonic()
            except UnreachableError:
                if time.monotonic() - answered > _PATIENCE_S:
                    raise
            time.sleep(_POLL_S)

    def _begin(self, fd: int, base_offset: BaseOffset, checked: SealedSegment) -> None:
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
        )

    def _ask(self, verb: str, descriptors: Sequence[int] = (), **arguments: str | int) -> dict[str, Any]:
        timeout_s = control_socket.PEER_TIMEOUT_S
        answer = control_socket.ask_with(self._target.socket, verb, descriptors, timeout_s, **arguments)
        if "refused" in answer:
            raise RefusedError(f"{self._target.name}: {answer['refused']}")
        return answer
