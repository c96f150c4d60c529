"""Links, fifos, devices and directories planted in the disk directories are never followed, opened or removed."""

import errno
import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.pools import MIB, PoolMount, segment_bytes
from support.snapshots import snapshot
from support.waiting import eventually

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

Plant = Callable[[Path, Path], None]


def plant_symlink(place: Path, secret: Path) -> None:
    place.symlink_to(secret)


def plant_climbing_symlink(place: Path, secret: Path) -> None:
    place.symlink_to(os.path.relpath(secret, place.parent))


def plant_dangling_symlink(place: Path, secret: Path) -> None:
    place.symlink_to(secret.with_name("not-there"))


def plant_fifo(place: Path, secret: Path) -> None:
    os.mkfifo(place)


def plant_device(place: Path, secret: Path) -> None:
    os.mknod(place, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero


def plant_socket(place: Path, secret: Path) -> None:
    here = os.open(place.parent, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"/proc/self/fd/{here}/{place.name}")
    os.close(here)


def plant_directory(place: Path, secret: Path) -> None:
    place.mkdir()
    (place / "kept").touch()


def plant_copy(place: Path, secret: Path) -> None:
    """An ordinary file of the right size, but not the one that was there."""
    with place.open("wb") as file:
        file.write(b"intruder")
        file.truncate(MIB)


PLANTS: list[Plant] = [
    plant_symlink,
    plant_climbing_symlink,
    plant_dangling_symlink,
    plant_fifo,
    plant_device,
    plant_socket,
    plant_directory,
]

_names = iter(range(1000))


@pytest.fixture
def segment(shared: PoolMount) -> Iterator[int]:
    """A segment of the shared mount, in no other test; whatever lies at its name is taken away afterwards."""
    index = next(_names)
    shared.make_segments([index])
    yield index
    for disk in shared.disks:
        place = Path(disk) / shared.path(index).name
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)


def swap(pool: PoolMount, index: int, plant: Plant, secret: Path) -> Path:
    """Put something else in the place of a segment's file, under a running daemon."""
    place = place_of(pool, index)
    place.rename(pool.workdir / f"aside{index}")
    plant(place, secret)
    return place


def place_of(pool: PoolMount, index: int) -> Path:
    return Path(pool.disks[pool.disk_of(index)]) / pool.path(index).name


@pytest.fixture
def closed(shared: PoolMount, segment: int) -> int:
    """A segment that the daemon has closed: the kernel sends the last close later than it returns to its caller."""
    place = place_of(shared, segment)
    eventually(lambda: not shared.has_open(place))
    return segment


@pytest.mark.parametrize("plant", [*PLANTS, plant_copy], ids=lambda plant: plant.__name__)
def test_swapped_under_a_running_daemon(shared: PoolMount, closed: int, secret: Path, plant: Plant) -> None:
    path = shared.path(closed)
    before = path.stat()
    place = swap(shared, closed, plant, secret)
    planted = snapshot(place)
    for flags in (os.O_RDONLY, os.O_RDWR, os.O_WRONLY):
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            os.close(os.open(path, flags))
    for change in (
        lambda: os.truncate(path, MIB),
        lambda: os.chmod(path, 0o777),
        lambda: os.chown(path, 1, 1),
        lambda: os.utime(path, (1, 1)),
        lambda: os.unlink(path),
    ):
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            change()
    with (
        open(shared.mountpoint / ".commitlogfs/log", "rb") as log,
        pytest.raises(OSError, match=os.strerror(errno.EIO)),
    ):
        os.pread(log.fileno(), 16, closed * MIB)
    # What the kernel knows of the file stays as it was: a mapped reader would die of a smaller size.
    after = path.stat()
    assert (after.st_ino, after.st_size, after.st_mode) == (before.st_ino, before.st_size, before.st_mode)
    assert path.name in os.listdir(shared.mountpoint)
    assert snapshot(place) == planted
    assert "traceback" not in shared.log_since_start()


def test_an_open_segment_serves_on_after_a_swap(shared: PoolMount, segment: int, secret: Path) -> None:
    with open(shared.path(segment), "r+b", buffering=0) as file:
        swap(shared, segment, plant_symlink, secret)
        assert os.pread(file.fileno(), 4096, 0) == segment_bytes(segment, 4096)
        os.pwrite(file.fileno(), b"on", 8192)
        assert os.fstat(file.fileno()).st_size == MIB
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            os.unlink(shared.path(segment))  # would move the link into .commitlogfs
    with open(shared.workdir / f"aside{segment}", "rb") as aside:
        assert os.pread(aside.fileno(), 2, 8192) == b"on"


def test_the_file_put_back_is_served_again(shared: PoolMount, closed: int, secret: Path) -> None:
    place = swap(shared, closed, plant_symlink, secret)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        os.open(shared.path(closed), os.O_RDONLY)
    place.unlink()
    (shared.workdir / f"aside{closed}").rename(place)
    assert shared.path(closed).read_bytes()[:4096] == segment_bytes(closed, 4096)
    shared.path(closed).unlink()
    assert not place.exists()


def test_a_vanished_file_is_an_error_and_can_be_removed(shared: PoolMount, closed: int) -> None:
    place = Path(shared.disks[shared.disk_of(closed)]) / shared.path(closed).name
    place.unlink()
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        os.open(shared.path(closed), os.O_RDONLY)
    shared.path(closed).unlink()
    assert shared.path(closed).name not in os.listdir(shared.mountpoint)
    assert "traceback" not in shared.log_since_start()


def test_a_vanished_file_that_is_open_can_be_removed(shared: PoolMount, segment: int) -> None:
    place = place_of(shared, segment)
    with open(shared.path(segment), "rb") as file:
        aside = place.rename(shared.workdir / f"aside{segment}")
        shared.path(segment).unlink()
        assert shared.path(segment).name not in os.listdir(shared.mountpoint)
        assert file.read(4096) == segment_bytes(segment, 4096)
        assert not (place.parent / ".commitlogfs").exists()
    eventually(lambda: not shared.has_open(aside))
    assert aside.read_bytes()[:4096] == segment_bytes(segment, 4096)
    assert "traceback" not in shared.log_since_start()


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_planted_where_the_next_segment_would_be_made(
    shared: PoolMount, segment: int, secret: Path, plant: Plant
) -> None:
    """Planted on every disk: whichever is chosen, the name is taken."""
    shared.path(segment).unlink()
    places = [Path(disk) / shared.path(segment).name for disk in shared.disks]
    for place in places:
        plant(place, secret)
    planted = snapshot(*places)
    for flags in (os.O_CREAT | os.O_RDWR, os.O_CREAT | os.O_EXCL | os.O_RDWR, os.O_CREAT | os.O_TRUNC | os.O_RDWR):
        with pytest.raises(FileExistsError):
            os.open(shared.path(segment), flags)
    assert snapshot(*places) == planted
    assert shared.path(segment).name not in os.listdir(shared.mountpoint)
    for place in places:
        shutil.rmtree(place) if plant is plant_directory else place.unlink()


@pytest.mark.parametrize("plant", [plant_symlink, plant_fifo, plant_directory], ids=lambda plant: plant.__name__)
def test_a_temporary_swapped_before_its_rename(shared: PoolMount, segment: int, secret: Path, plant: Plant) -> None:
    shared.path(segment).unlink()
    temporary = shared.mountpoint / f".{shared.path(segment).name}.x{segment}"
    temporary.write_bytes(bytes(MIB))
    (place,) = [Path(disk) / temporary.name for disk in shared.disks if (Path(disk) / temporary.name).exists()]
    place.unlink()
    plant(place, secret)
    with pytest.raises(OSError) as error:  # noqa: PT011
        temporary.rename(shared.path(segment))
    assert error.value.errno in (errno.EIO, errno.EINVAL)  # another file, or not a whole one
    assert not any(os.path.lexists(Path(disk) / shared.path(segment).name) for disk in shared.disks)
    shutil.rmtree(place) if plant is plant_directory else place.unlink()
    temporary.unlink()


@pytest.mark.parametrize("kind", ["symlink", "file"])
def test_retiring_never_goes_through_a_planted_directory(
    shared: PoolMount, segment: int, workdir: Path, kind: str
) -> None:
    foreign = workdir / "foreign"
    foreign.mkdir()
    disk = Path(shared.disks[shared.disk_of(segment)])
    planted = disk / ".commitlogfs"
    eventually(lambda: not os.path.lexists(planted))  # a file that another test had open may just be leaving it
    planted.symlink_to(foreign) if kind == "symlink" else planted.write_bytes(b"mine")
    before = snapshot(planted)
    with open(shared.path(segment), "rb") as file:
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            shared.path(segment).unlink()
        assert file.read(4096) == segment_bytes(segment, 4096)
    assert os.listdir(foreign) == []
    assert snapshot(planted) == before
    assert "traceback" not in shared.log_since_start()
    planted.unlink()
    shared.path(segment).unlink()


def test_nothing_left_open(shared: PoolMount, closed: int, secret: Path) -> None:
    """Every refused open gives its descriptor back."""
    swap(shared, closed, plant_symlink, secret)
    assert shared.daemon is not None
    directory = f"/proc/{shared.daemon.pid}/fd"
    before = len(os.listdir(directory))
    for _ in range(50):
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            os.open(shared.path(closed), os.O_RDONLY)
    assert len(os.listdir(directory)) <= before + 2


# --- before the mount --------------------------------------------------------------------------------


def test_planted_before_the_mount(make_pool, secret: Path) -> None:
    """Everything at once: reported, served around, kept. The daemon starts, so no fifo has blocked it."""
    pool = make_pool(3)
    pool.start()
    pool.make_segments(range(3))
    pool.stop()
    disk = Path(pool.disks[0])
    foreign = pool.workdir / "foreign"
    foreign.mkdir()
    (foreign / f"{pool.path(1).name}.0123abcd").write_bytes(b"a retired segment, it seems")
    places = []
    for number, plant in enumerate(PLANTS):
        for name in (pool.path(10 + number).name, f".{pool.path(10 + number).name}.tmp"):
            plant(disk / name, secret)
            places.append(disk / name)
    (disk / ".commitlogfs").symlink_to(foreign)
    (disk / "evil\nname\x1b[31m").touch()
    before = snapshot(*places, foreign)
    pool.start()
    assert sorted(os.listdir(pool.mountpoint)) == [pool.path(index).name for index in range(3)]
    for place in places:
        assert not os.path.lexists(pool.mountpoint / place.name)
        with pytest.raises(FileExistsError):
            os.open(pool.mountpoint / place.name, os.O_CREAT | os.O_RDWR)
    status = pool.status()
    irregular = {finding["file"] for finding in status["findings"] if finding["code"] == "not-a-regular-file"}
    assert irregular == {place.name for place in places}
    aliens = {finding["file"] for finding in status["findings"] if finding["code"] == "alien-file"}
    assert aliens == {".commitlogfs", "evil\\nname\\x1b[31m"}
    assert "\x1b" not in pool.cli("status").out
    assert all(line[:4].isdigit() for line in pool.log_since_start().splitlines())
    pool.stop()
    assert snapshot(*places, foreign) == before
    # `adopt` names the stranger in one line, whatever its name holds.
    for place in pool.disks:
        os.removexattr(place, "user.commitlogfs.identity")
    for place in places:
        shutil.rmtree(place) if place.is_dir() and not place.is_symlink() else place.unlink()
    (disk / ".commitlogfs").unlink()
    ran = pool.cli("adopt", pool.config)
    assert ran.status == 4
    assert ran.err.count("\n") == 1
    assert "evil\\nname\\x1b[31m: alien-file" in ran.err


@pytest.mark.parametrize("same_filesystem", [True, False])
def test_something_mounted_over_a_segment(make_pool, same_filesystem: bool) -> None:
    """The planted file is not the disk's own: before the mount it is not a segment, later it is not opened."""
    pool = make_pool(1)
    pool.start()
    pool.make_segments(range(3))
    place = Path(pool.disks[0]) / pool.path(1).name
    other = (pool.workdir if same_filesystem else Path("/dev/shm")) / f"other-{os.getpid()}"
    with open(other, "wb") as file:
        file.truncate(MIB)
    try:
        subprocess.run(["mount", "--bind", other, place], check=True)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            os.open(pool.path(1), os.O_RDWR)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            os.unlink(pool.path(1))
        assert pool.path(1).stat().st_size == MIB
        pool.stop()
        ran = pool.cli("mount", pool.config)
        assert ran.status == 4
        assert f"{pool.path(1).name}: 1 segment is missing" in ran.err
        subprocess.run(["umount", place], check=True)
        pool.start()
        assert pool.path(1).read_bytes()[:4096] == segment_bytes(1, 4096)
    finally:
        subprocess.run(["umount", place], check=False, capture_output=True)
        other.unlink()
