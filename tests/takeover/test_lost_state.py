"""The state that daemons pass on is lost or damaged: processes with open files are not harmed."""

import errno
import mmap
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from support.loop_disks import DiskFarm
from support.pools import MIB, PoolMount
from support.versions import VersionedMount
from support.waiting import eventually

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

RECORDS = 32
"""Where a backing table's records begin."""
LOSE_TABLE = """
import os
names = os.environ.get("LISTEN_FDNAMES", "").split(":")
if names[-1] == "backing":
    os.close(2 + len(names))
    os.environ.update(LISTEN_FDS=str(len(names) - 1), LISTEN_FDNAMES=":".join(names[:-1]))
"""
LOSE_HANDSHAKE = """
import os
if os.environ.get("LISTEN_FDNAMES", "") == "fuse:handshake:backing":
    os.dup2(5, 4)
    os.close(5)
    os.environ.update(LISTEN_FDS="2", LISTEN_FDNAMES="fuse:backing")
"""
SPOIL_HANDSHAKE = """
import os
names = os.environ.get("LISTEN_FDNAMES", "").split(":")
if "handshake" in names:
    fd = 3 + names.index("handshake")
    content = bytearray(os.pread(fd, 1 << 16, 0))
    content[-1] ^= 1
    os.dup2(os.memfd_create("spoilt"), fd)
    os.write(fd, content)
"""


def table_of(mount: VersionedMount) -> Path:
    """The kept backing table, by way of the keeper."""
    assert mount.pool.daemon is not None
    directory = Path(f"/proc/{mount.pool.daemon.pid}/fd")
    (found,) = [fd for fd in directory.iterdir() if "commitlogfs-backing" in os.readlink(fd)]
    return found


def write_at(path: Path, position: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(content)


def lose(mount: VersionedMount) -> None:
    mount.before(LOSE_TABLE)


def cut(mount: VersionedMount) -> None:
    os.truncate(table_of(mount), RECORDS + 16)


def mark(mount: VersionedMount) -> None:
    write_at(table_of(mount), 0, b"CLFS")


def spoil_record(mount: VersionedMount) -> None:
    table = table_of(mount)
    byte = table.read_bytes()[RECORDS + 12]
    write_at(table, RECORDS + 12, bytes([byte ^ 0x80]))


def is_lost(mount: VersionedMount) -> tuple[bool, str]:
    """As status and metrics tell it."""
    text = (mount.pool.mountpoint / ".commitlogfs/metrics").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("commitlogfs_state_lost{")]
    return mount.pool.status()["daemon"]["state_lost"], line.split()[1]


def grow(pool: PoolMount, index: int, size: int = MIB) -> int:
    fd = os.open(pool.path(index), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    os.ftruncate(fd, size)
    return fd


@pytest.mark.parametrize("damage", [lose, cut, mark, spoil_record])
def test_a_lost_table_costs_open_files_their_names_only(
    keep_versions: Callable[..., VersionedMount], damage: Callable[[VersionedMount], None]
) -> None:
    """Passthrough: mapped files, reads and writes continue, and files can be opened again; only requests about a
    file by an old descriptor are refused."""
    mount = keep_versions(2)
    pool = mount.pool
    old = grow(pool, 0)
    with mmap.mmap(old, MIB) as mapped:
        mapped[:6] = b"before"
        assert is_lost(mount) == (False, "0.0")
        mount.kill()
        damage(mount)
        mapped[10:16] = b"during"
        mount.go_on()
        mount.before("")
        eventually(lambda: mount.events("state_lost"))
        assert is_lost(mount) == (True, "1.0")
        new = os.open(pool.path(0), os.O_RDWR)
        assert os.pread(new, 16, 0) == os.pread(old, 16, 0) == b"before" + bytes(4) + b"during"
        os.pwrite(new, b"new", 20)
        mapped[30:33] = b"old"
        mapped.flush()
        assert (mapped[20:23], os.pread(new, 3, 30)) == (b"new", b"old")
        with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
            os.fsync(old)
        os.fsync(new)
        mount.replace()  # this one finds everything that it needs
        eventually(lambda: len(mount.events("state_lost")) == 1)
        assert is_lost(mount) == (True, "1.0")
        os.close(os.open(pool.path(0), os.O_RDWR))
        assert os.fstat(new).st_size == MIB
        os.close(new)
    os.close(old)
    os.close(grow(pool, 1))
    assert sorted(os.listdir(pool.mountpoint)) == [pool.path(0).name, pool.path(1).name]


def test_without_passthrough_a_lost_table_costs_nothing(keep_versions: Callable[..., VersionedMount]) -> None:
    mount = keep_versions(2, settings={"passthrough": '"off"'})
    pool = mount.pool
    fd = grow(pool, 0)
    with mmap.mmap(fd, MIB) as mapped:
        mapped[:6] = b"before"
        mount.kill()
        lose(mount)
        mapped[10:16] = b"during"
        mount.go_on()
        mount.before("")
        assert is_lost(mount) == (True, "1.0")
        pool.path(0).unlink()  # held open, which this daemon does not know
        mapped.flush()
        os.fsync(fd)
        assert os.fstat(fd).st_nlink == 0
        assert os.pread(fd, 16, 0) == b"before" + bytes(4) + b"during"
        assert pool.status()["segments"]["retired"] == 1
    os.close(fd)
    eventually(lambda: pool.status()["segments"]["retired"] == 0)
    mount.replace()
    assert "backing_id_stays" not in pool.log_since_start()


@pytest.mark.parametrize(
    ("damage", "said"),
    [(SPOIL_HANDSHAKE, "the kept INIT request is damaged"), (LOSE_HANDSHAKE, "the kernel was not kept")],
    ids=["damaged", "missing"],
)
def test_without_the_handshake_the_mount_stays_as_it_is(
    keep_versions: Callable[..., VersionedMount], damage: str, said: str
) -> None:
    mount = keep_versions(2)
    fd = grow(mount.pool, 0)
    with mmap.mmap(fd, MIB) as mapped:
        mount.kill()
        mount.before(damage)
        mount.let_go_on("successor_refused")
        mapped[:4] = b"goes"
        mount.before("")
        mount.wait_ready(2)
        os.fsync(fd)
        assert os.pread(fd, 4, 0) == b"goes"
    os.close(fd)
    mount.pool.require_logged(said)
    assert not mount.pool.status()["daemon"]["state_lost"]


def test_ids_that_nobody_has_recorded_are_given_back_and_their_space_with_them(
    keep_versions: Callable[..., VersionedMount], disk_farm: DiskFarm
) -> None:
    directory = disk_farm.add("ext4").path / "cl"
    directory.mkdir()
    mount = keep_versions(disks=[directory], segment_size=16 * MIB)
    pool = mount.pool

    def free() -> int:
        state = os.statvfs(directory)
        return state.f_bfree * state.f_frsize

    before = free()
    for index in range(2):
        os.close(grow(pool, index, 16 * MIB))
    mount.kill()
    table = table_of(mount)
    records = range(RECORDS, table.stat().st_size, 16)
    _, second = (at for at in records if struct.unpack_from("<Qi", table.read_bytes(), at)[1] > 0)
    write_at(table, second, bytes(16))
    (directory / pool.path(1).name).unlink()
    assert before - free() > 30 * MIB, "held by an id that nobody knows"
    mount.go_on()
    eventually(lambda: before - free() < 17 * MIB)
    eventually(lambda: mount.events("unknown_ids_given_back", count=1))
    assert not mount.pool.status()["daemon"]["state_lost"]
    mount.pool.stop()
