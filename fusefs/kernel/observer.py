"""Events of fusefs that are counted: an interface, so that fusefs needs no metrics library."""

from typing import Protocol

from commitlogfs.fusefs.kernel.decisions import SILENT, Decisions


class Observer(Protocol):
    """All calls come from the event loop and must not block."""

    @property
    def decisions(self) -> Decisions:
        """Where decisions about segments are recorded."""

    def operation(self, op: str, errno_name: str, seconds: float) -> None:
        """A FUSE request is answered now; `errno_name` is "" for success."""

    def request_resent(self) -> None:
        """A request came that a former daemon had received and not answered."""

    def segment_created(self, result: str, seconds: float, disk: str) -> None:
        """A create ended; `result` is "ok", "exists", "no-space" or "failed". `disk` is the path of the disk that
        has the segment; "" without one."""

    def segment_removed(self, disk: str, seconds: float) -> None:
        """A segment has left the log, as fast as its disk could remove it."""

    def disk_error(self, disk: str, op: str, errno_name: str) -> None:
        """A disk answered a blocking call with an error, or missed its deadline."""

    def placement_skipped(self, reason: str) -> None:
        """A disk was passed over when a segment was placed."""

    def passthrough_refused(self, reason: str) -> None:
        """A file is served by the daemon, although passthrough is on."""


class SilentObserver:
    """Counts nothing: for tests and tools that serve without metrics."""

    decisions: Decisions = SILENT

    def operation(self, op: str, errno_name: str, seconds: float) -> None: ...
    def request_resent(self) -> None: ...
    def segment_created(self, result: str, seconds: float, disk: str) -> None: ...
    def segment_removed(self, disk: str, seconds: float) -> None: ...
    def disk_error(self, disk: str, op: str, errno_name: str) -> None: ...
    def placement_skipped(self, reason: str) -> None: ...
    def passthrough_refused(self, reason: str) -> None: ...
