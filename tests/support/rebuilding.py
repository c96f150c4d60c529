"""A rebuild without Spark: the workers' functions called one after the other, their items sorted in between."""

from collections import Counter
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from commitlogfs.pipeline.broker.index_file import Share, plan_files
from commitlogfs.pipeline.broker.settings import BrokerSettings
from commitlogfs.pipeline.jobs import rebuild_tasks as tasks
from commitlogfs.pipeline.log.scanner import DamageMode
from commitlogfs.pipeline.log.segments import list_segments
from commitlogfs.pipeline.log.splits import plan_splits
from commitlogfs.pipeline.log.tail import find_end

QUEUE_WRITERS = 3


def rebuild_in_process(
    log: Path, building: Path, settings: BrokerSettings, split_size: int, mode: DamageMode = DamageMode.FAILFAST
) -> tuple[dict[str, bytes], Counter[str]]:
    """All files (those of the index by number, without a last empty one), and the figures of the queues."""
    listing = list_segments(str(log))
    splits = plan_splits(listing, find_end(listing, settle_s=0), split_size=split_size)
    building.mkdir(parents=True, exist_ok=True)
    items = list(
        tasks.decode_splits(
            range(len(splits)),
            splits=splits,
            rules=settings.rules,
            mode=mode,
            building=building,
            queues=True,
            index=True,
        )
    )
    pieces = sorted(piece for item in tasks.only_summaries(items) for piece in item.key_pieces)
    plan = plan_files((count for _, count in pieces), settings.index_capacity)
    shares: dict[tasks.Place, list[Share]] = {}
    for share in plan:
        shares.setdefault(pieces[share.block][0], []).append(share)
    index_files = plan[-1].file + 1 if plan else 0
    # Reversed, so that nothing is in order by itself.
    pairs = list(tasks.route(reversed(items), shares=shares, index_files=index_files, queue_writers=QUEUE_WRITERS))
    pairs.sort(key=itemgetter(0))
    figures: Counter[str] = Counter()
    for number, of_writer in groupby(pairs, lambda pair: pair[0].writer):
        for written in tasks.write(
            number, of_writer, index_files=index_files, building=building, settings=settings
        ):
            if isinstance(written, Counter):
                figures += written
    return read_files(building / "out") | read_files(building / "index", "index/"), figures


def read_files(directory: Path, prefix: str = "") -> dict[str, bytes]:
    """Path below `directory` -> content."""
    return {
        prefix + str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
