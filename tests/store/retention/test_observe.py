"""Facts about a log, as the rules of deletion get them."""

from support.files import packed_attributes, pool_of

from commitlogfs.store.disks.disk import Disk
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.files.filesystem import FilesystemKind, Suitability
from commitlogfs.store.placement import POLICIES
from commitlogfs.store.pool.catalog import Catalog, Segment
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.pool.inventory import Inventory
from commitlogfs.store.retention.facts import Moment
from commitlogfs.store.retention.observe import observe
from commitlogfs.store.segment import BaseOffset
from commitlogfs.store.thresholds import Thresholds

SIZE = 4096


def test_a_segment_frees_its_blocks_unless_it_has_another_name() -> None:
    inventory = Inventory(Catalog(SIZE))
    for index, (nlink, blocks) in enumerate([(1, 8), (2, 8), (1, 2)]):
        attributes = packed_attributes(index + 100, SIZE, nlink=nlink, blocks=blocks)
        inventory.catalog.add(Segment(BaseOffset(index * SIZE), DiskNumber(1), attributes))
    disk = Disk(DiskNumber(1), "id1", "/data1", -1, FilesystemKind("ext4", Suitability.FULL, ""), Thresholds())
    log = CommitLog(pool_of([disk], inventory, SIZE), POLICIES["round-robin"])
    seen = observe(log, Moment(1_800_000_000 * 10**9, 1000.0, 12), lambda _: 0.0, {})
    assert [facts.allocated_bytes for facts in seen.log] == [4096, 0, 1024]
