"""A broker and its producer beside a scrub at the default rate."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from commitlogfs.bench.beside_broker import Work, broker_on, send
from commitlogfs.bench.catalog_figures import WrongResultError
from commitlogfs.bench.datapath_rounds import Collected, Tell
from commitlogfs.bench.datapath_settings import Settings
from commitlogfs.bench.measured_pool import MeasuredPool, measured_pool
from commitlogfs.bench.rocketmq import BatchSender, Distribution, SendResult
from commitlogfs.bench.scrub.pool_scrub import PoolScrub
from commitlogfs.bench.targets_disks import BenchDisks

SCRUBS: Final = Work("scrub", "no scrub", "scrubbing")
_POLL_S: Final = 1.0
"""Each question has the daemon measure its disks, which disturbs a broker as well."""


def measure_sending(
    work: Path, disks: BenchDisks, settings: Settings, distribution: Distribution, tell: Tell, found: Collected
) -> None:
    """Raises RocketmqError, CommandFailedError, OSError; WrongResultError if nothing was read meanwhile."""
    with (
        measured_pool(work / "sending", disks.paths, settings.broker_segment_bytes, MeasuredPool) as pool,
        broker_on(pool.mountpoint, work, settings, distribution) as site,
    ):
        found.about[SCRUBS.still] = f"a broker on a mount with passthrough {pool.passthrough()}"
        found.about[SCRUBS.control] = "the same again: the noise of this machine"
        found.about[SCRUBS.working] = "the same broker and mount during a scrub at the default rate"
        tell("scrub: the broker writes the segments that will be read")
        site.write_cold()
        site.compare(SCRUBS, lambda sender, count: _send_beside_scrub(pool, sender, count), tell, found)


def _send_beside_scrub(pool: MeasuredPool, sender: BatchSender, count: int) -> tuple[SendResult, dict[str, float]]:
    with _scrubbing(pool):
        began_s, read = time.monotonic(), pool.read_bytes()
        sent = send(sender, count)
        seconds, read = time.monotonic() - began_s, pool.read_bytes() - read
    if not read:
        raise WrongResultError("nothing was scrubbed while the broker took messages; give more --messages")
    return sent, {"scrub_read_mb_per_s": round(read / seconds / 1e6, 2)}


@contextmanager
def _scrubbing(pool: MeasuredPool) -> Iterator[None]:
    """Meanwhile a scrub is under way; when it has ended, the next one begins."""
    scrub, end, errors = PoolScrub(pool), threading.Event(), list[Exception]()
    scrub.start()

    def again() -> None:
        try:
            while not end.wait(_POLL_S):
                if not scrub.is_running():
                    scrub.start()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=again)
    try:
        began = pool.read_bytes()
        pool.wait_until(lambda: pool.read_bytes() > began, "the scrub begins to read")
        thread.start()
        yield
    finally:
        end.set()
        if thread.ident is not None:
            thread.join()
        scrub.cancel()
    if errors:
        raise errors[0]
