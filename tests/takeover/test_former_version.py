"""The present version continues what the last one before the division into directories has made, and back."""

import mmap
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support.installations import Installations, copy_former, why_not_former
from support.messages import messages
from support.pools import MIB, PoolMount, segment_bytes
from support.releases import copy_source
from support.waiting import eventually
from support.written_logs import WrittenLog, write_log

pytestmark = [
    pytest.mark.mounted,
    pytest.mark.root,
    pytest.mark.soak,
    pytest.mark.skipif(bool(why_not_former()), reason=why_not_former() or "can be installed"),
]

SEGMENT = 1 << 16


@pytest.fixture(scope="module")
def installations(tmp_path_factory: pytest.TempPathFactory) -> Installations:
    directory = tmp_path_factory.mktemp("installations")
    copy_former(directory / "former-source")
    copy_source(directory / "present-source")
    made = Installations(directory / "opt")
    for name in ("former", "present"):
        made.install(name, directory / f"{name}-source")
    return made


@pytest.fixture
def pool(make_pool: Callable[..., PoolMount], installations: Installations) -> Iterator[PoolMount]:
    """Made by the former version; not mounted."""
    pool = make_pool(3, born=False)
    pool.write_config()
    pool.runtime.mkdir(mode=0o700, exist_ok=True)
    installations.choose("former")
    installations.run("commitlogfs", "init", pool.config, runtime=pool.runtime)
    yield pool
    installations.choose("present")
    if os.path.ismount(pool.mountpoint):
        installations.run("commitlogfs", "umount", pool.mountpoint, runtime=pool.runtime)


def daemon_of(pool: PoolMount, installations: Installations) -> int:
    pid: int = installations.status(pool.name, pool.runtime)["daemon"]["pid"]
    return pid


def mount(pool: PoolMount, installations: Installations) -> None:
    installations.run("commitlogfs", "mount", "--daemon", pool.config, runtime=pool.runtime)


def hand_over(pool: PoolMount, installations: Installations, version: str) -> None:
    """Upgrade as docs/installing.md says."""
    installations.choose(version)
    installations.run("commitlogfs", "restart", pool.name, runtime=pool.runtime)
    assert installations.version_of(daemon_of(pool, installations)) == version


def kill(pool: PoolMount, installations: Installations, version: str) -> None:
    """Kill the daemon; the version then chosen serves."""
    before = daemon_of(pool, installations)
    os.kill(before, signal.SIGKILL)
    installations.run("commitlogfs", "ready", pool.name, "--wait", "30", runtime=pool.runtime)
    eventually(lambda: daemon_of(pool, installations) != before)
    assert installations.version_of(daemon_of(pool, installations)) == version


def test_a_live_mount_with_a_mapped_file_is_handed_over(pool: PoolMount, installations: Installations) -> None:
    mount(pool, installations)
    assert installations.version_of(daemon_of(pool, installations)) == "former"
    pool.make_segments(range(4))
    fd = os.open(pool.path(4), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    os.ftruncate(fd, MIB)
    mapped = mmap.mmap(fd, MIB)
    try:
        for turn, version in enumerate(("present", "former", "present"), start=1):
            mapped[turn] = turn
            hand_over(pool, installations, version)
            kill(pool, installations, version)
            kill(pool, installations, version)
            mapped[100 + turn] = turn
            mapped.flush()
            assert bytes(mapped[1 : turn + 1]) == bytes(range(1, turn + 1))
            pool.make_segments([4 + turn])
            assert len(os.listdir(pool.mountpoint)) == 5 + turn
        content = mapped[:]
    finally:
        mapped.close()
        os.close(fd)
    installations.run("commitlogfs", "umount", pool.mountpoint, runtime=pool.runtime)
    assert (pool.disks[pool.disk_of(4)] / pool.path(4).name).read_bytes() == content


def test_a_pool_is_continued(pool: PoolMount, installations: Installations) -> None:
    indexes = 0
    for version in ("former", "present", "former", "present"):
        installations.choose(version)
        mount(pool, installations)
        assert len(os.listdir(pool.mountpoint)) == indexes
        pool.make_segments(range(indexes, indexes + 3))
        indexes += 3
        for index in range(indexes):
            assert pool.path(index).read_bytes()[:4096] == segment_bytes(index, 4096)
        assert len({pool.disk_of(index) for index in range(indexes - 3, indexes)}) == 3, "striping goes on"
        installations.run("commitlogfs", "umount", pool.mountpoint, runtime=pool.runtime)


def append_messages(log: WrittenLog, count: int) -> None:
    for make in messages(count, first=len(log.offsets)):
        log.append(make)


def test_an_export_is_continued(tmp_path: Path, installations: Installations) -> None:
    log = write_log(tmp_path / "log", SEGMENT, [])
    for version in ("former", "present", "former", "present"):
        append_messages(log, 300)
        installations.choose(version)
        export = ("export", tmp_path / "log", tmp_path / "out", "--master", "local[1]")
        installations.run("commitlogfs-pipeline", *export, runtime=tmp_path)
        assert exported_offsets(tmp_path / "out") == log.offsets


def exported_offsets(directory: Path) -> list[int]:
    return sorted(
        offset
        for path in directory.rglob("*.parquet")
        for offset in pq.read_table(path, columns=["commitLogOffset"]).column(0).to_pylist()
    )
