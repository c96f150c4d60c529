"""Events that the request handlers report, counted."""

from collections.abc import Callable
from typing import Final, cast

from prometheus_client import CollectorRegistry, Counter, Histogram, Info, disable_created_metrics

from commitlogfs.console.version import VERSION
from commitlogfs.fusefs.kernel.decisions import SILENT, Decisions
from commitlogfs.mount.metrics.table import BY_NAME, PREFIX

OK: Final = "ok"
"""Result of a create that has made a segment (fusefs.kernel.observer)."""

# There would be a series for the birth of each other one. The function has no annotations.
cast(Callable[[], None], disable_created_metrics)()


class Counts:
    """Implements fusefs.kernel.observer.Observer."""

    def __init__(
        self,
        registry: CollectorRegistry,
        pool: str,
        on_first_answer: Callable[[], None] | None = None,
        decisions: Decisions = SILENT,
    ) -> None:
        """`on_first_answer` is called once, right before the first request is answered."""
        self.decisions = decisions
        self._registry = registry
        self._pool = pool
        self._on_first_answer = on_first_answer
        self._ops = self._counter("fuse_ops_total")
        self._op_seconds = self._histogram("fuse_op_seconds")
        self._creates = self._counter("segment_creates_total")
        self._create_seconds = self._histogram("segment_create_seconds")
        self._disk_creates = self._histogram("disk_segment_create_seconds")
        self._disk_removals = self._histogram("disk_segment_removal_seconds")
        self._disk_errors = self._counter("disk_io_errors_total")
        self._skips = self._counter("placement_skips_total")
        self._plain_opens = self._counter("passthrough_fallbacks_total")
        self._resent = self._counter("resent_requests_total")
        self._resent.labels(pool)  # exposed before the first one
        self._create_seconds.labels(pool)
        Info(f"{PREFIX}build", BY_NAME["build_info"].text, (), registry=registry).info(
            {"pool": pool, "version": VERSION}
        )

    def operation(self, op: str, errno_name: str, seconds: float) -> None:
        if self._on_first_answer is not None:
            on_first_answer, self._on_first_answer = self._on_first_answer, None
            on_first_answer()
        self._ops.labels(self._pool, op, errno_name).inc()
        self._op_seconds.labels(self._pool, op).observe(seconds)

    def request_resent(self) -> None:
        self._resent.labels(self._pool).inc()

    def segment_created(self, result: str, seconds: float, disk: str) -> None:
        self._creates.labels(self._pool, result).inc()
        if result == OK:
            self._create_seconds.labels(self._pool).observe(seconds)
            self._disk_creates.labels(self._pool, disk).observe(seconds)

    def segment_removed(self, disk: str, seconds: float) -> None:
        self._disk_removals.labels(self._pool, disk).observe(seconds)

    def disk_error(self, disk: str, op: str, errno_name: str) -> None:
        self._disk_errors.labels(self._pool, disk, op, errno_name).inc()

    def placement_skipped(self, reason: str) -> None:
        self._skips.labels(self._pool, reason).inc()

    def passthrough_refused(self, reason: str) -> None:
        self._plain_opens.labels(self._pool, reason).inc()

    def _counter(self, name: str) -> Counter:
        row = BY_NAME[name]
        return Counter(row.full_name, row.text, row.all_labels, registry=self._registry)

    def _histogram(self, name: str) -> Histogram:
        row = BY_NAME[name]
        return Histogram(row.full_name, row.text, row.all_labels, registry=self._registry, buckets=row.buckets)
