"""A broker and its producer beside a move at the default rate."""

import time
from pathlib import Path
from typing import Final

from commitlogfs.bench.beside_broker import Work, broker_on, send
from commitlogfs.bench.catalog_figures import WrongResultError
from commitlogfs.bench.datapath_rounds import Collected, Tell
from commitlogfs.bench.datapath_settings import Settings
from commitlogfs.bench.moves.drained_pool import DrainedPool, drained_pool
from commitlogfs.bench.rocketmq import BatchSender, Distribution, SendResult
from commitlogfs.bench.targets_disks import BenchDisks

MOVES: Final = Work("move", "no move", "moving")


def measure_sending(
    work: Path, disks: BenchDisks, settings: Settings, distribution: Distribution, tell: Tell, found: Collected
) -> None:
    """Raises RocketmqError, CommandFailedError, OSError; WrongResultError if all segments were moved too early."""
    with (
        drained_pool(work / "sending", disks.paths, settings.broker_segment_bytes) as pool,
        broker_on(pool.mountpoint, work, settings, distribution) as site,
    ):
        found.about[MOVES.still] = (
            f"a broker on a mount with passthrough {pool.passthrough()}; one disk is cordoned"
        )
        found.about[MOVES.control] = "the same again: the noise of this machine"
        found.about[MOVES.working] = "the same broker and mount while that disk drains at the default rate"
        tell("moves: the broker writes the segments that will be moved")
        pool.fill_source_only()
        site.write_cold(pool.fill_others_only)
        site.compare(MOVES, lambda sender, count: _send_beside_move(pool, sender, count), tell, found)


def _send_beside_move(pool: DrainedPool, sender: BatchSender, count: int) -> tuple[SendResult, dict[str, float]]:
    pool.drain()
    try:
        pool.wait_until(pool.is_moving, "a move begins")
        began_s, read = time.monotonic(), pool.read_bytes()
        sent = send(sender, count)
        seconds, read = time.monotonic() - began_s, pool.read_bytes() - read
        left = pool.segments_to_move()
    finally:
        pool.cancel()
    if not left:
        raise WrongResultError(
            "all segments were moved before the last message was sent; give a larger --cold, or fewer --rounds or "
            "--messages"
        )
    if not read:
        raise WrongResultError("nothing was moved while the broker took messages; give more --messages")
    return sent, {"move_read_mb_per_s": round(read / seconds / 1e6, 2)}
