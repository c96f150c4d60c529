"""Where an offset lies, and why nowhere: on plain directories, without a mount."""

import pytest
from support.pooled import open_parts

from commitlogfs.console.errors import UsageError
from commitlogfs.mount.status.locate import locate, parse_target
from commitlogfs.store.disks.directories import DiskSpec
from commitlogfs.store.placement import POLICIES
from commitlogfs.store.pool.commitlog import CommitLog
from commitlogfs.store.pool.open import open_pool
from commitlogfs.store.thresholds import Thresholds

SIZE = 4096


@pytest.fixture
def directories(workdir):
    """The disks of a pool that is not open: segments 2 and 4 on disk 1, 4 (again) and 5 (of no size) on disk 2."""
    with open_parts(workdir, 2, SIZE) as parts:
        one, two = parts.directories
    for directory, index, size in ((one, 2, SIZE), (one, 4, SIZE), (two, 4, SIZE), (two, 5, 0), (one, 6, SIZE)):
        (directory / f"{index * SIZE:020d}").write_bytes(bytes(size))
    return one, two


@pytest.fixture
def commitlog(directories):
    specs = tuple(DiskSpec(str(directory), Thresholds()) for directory in directories)
    log = CommitLog(open_pool(specs, SIZE), POLICIES["round-robin"])
    yield log
    log.close()


def test_first_and_last_byte(commitlog, directories):
    for position in (0, SIZE - 1):
        found = locate(commitlog, 2 * SIZE + position)
        assert (found.present, found.position, found.disk_number) == (True, position, 1)
        assert found.path == f"{directories[0]}/{2 * SIZE:020d}"
        assert found.reason == ""


@pytest.mark.parametrize(
    ("offset", "said"),
    [
        (0, f"before the oldest segment {2 * SIZE:020d}: deleted, or never there"),
        (2 * SIZE - 1, "before the oldest segment"),
        (3 * SIZE, "in a gap of the log: see `commitlogfs check`"),
        (4 * SIZE + 7, f"segment {4 * SIZE:020d} is quarantined: it is on more than one disk"),
        (5 * SIZE, "has been created but does not have its size yet"),
        (7 * SIZE, f"after the newest segment {6 * SIZE:020d}: not written yet"),
        (2**63 - 1, "after the newest segment"),
    ],
)
def test_nowhere(commitlog, offset, said):
    found = locate(commitlog, offset)
    assert (found.offset, found.present, found.position) == (offset, False, 0)
    assert said in found.reason


def test_an_empty_log(workdir):
    with open_parts(workdir, 1, SIZE) as parts:
        assert locate(parts.commitlog, 0).reason == "the log is empty"


@pytest.mark.parametrize("target", ["0", "00000000000000004096", "9223372036854775807"])
def test_targets(target):
    assert parse_target(target) == int(target)


@pytest.mark.parametrize("target", ["", "-1", "+1", "1 ", "0x10", "1.0", "٣", "9223372036854775808", "0" * 21])
def test_no_targets(target):
    with pytest.raises(UsageError, match="neither a log offset nor a segment name"):
        parse_target(target)
