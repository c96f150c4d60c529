"""Everyday tools on a mounted log: what they read equals the bare files, what they write arrives there."""

import errno
import hashlib
import mmap
import os
import random
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from support.pools import MIB, PoolMount

pytestmark = [pytest.mark.mounted, pytest.mark.full]
BOTH_MODES = True

NextIndex = Callable[[], int]
LONG_AGO = "2021-03-04 05:06:07.123456789 +0000"
LONG_AGO_NS = 1_614_834_367_123_456_789


def run(*command: object, fails: bool = False) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C", "TZ": "UTC"},
    )
    assert (done.returncode != 0) == fails, done.stderr
    return done


def need(tool: str) -> str:
    if shutil.which(tool) is None:
        pytest.skip(f"no {tool}")
    return tool


def noise(index: int) -> bytes:
    """The whole content of a segment: random, the same in every run."""
    return random.Random(index).randbytes(MIB)  # noqa: S311


def make(pool: PoolMount, index: int) -> bytes:
    fd = os.open(pool.path(index), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        os.ftruncate(fd, MIB)
        os.pwrite(fd, noise(index), 0)
    finally:
        os.close(fd)
    return noise(index)


def bare(pool: PoolMount, index: int) -> Path:
    """The file on the disk that holds a segment."""
    return Path(pool.disks[pool.disk_of(index)]) / pool.path(index).name


def allocated(path: Path) -> int:
    return path.stat().st_blocks * 512


@pytest.fixture
def outside(workdir: Path) -> Path:
    """A directory outside the mount with a segment-sized file of each index to come."""
    directory = workdir / "outside"
    directory.mkdir()
    return directory


# --- looking ----------------------------------------------------------------------------------------------


def test_ls_stat_and_find_show_what_lies_on_the_disks(shared: PoolMount, next_index: NextIndex) -> None:
    indexes = [next_index() for _ in range(4)]
    for index in indexes:
        make(shared, index)
    os.chmod(shared.path(indexes[0]), 0o640)
    os.chown(shared.path(indexes[1]), 1234, 4321)
    listed = {
        line.split()[-1]: line.split() for line in run("ls", "-ln", shared.mountpoint).stdout.splitlines()[1:]
    }
    for index in indexes:
        name = shared.path(index).name
        _, _, uid, gid, size, *_ = run("ls", "-ln", bare(shared, index)).stdout.split()
        assert listed[name][2:5] == [uid, gid, size]
        assert listed[name][0] == run("ls", "-ln", bare(shared, index)).stdout.split()[0]
        form = "%s %b %B %a %u %g %.Y"  # ctime and the link count are the disk's own as well
        assert (
            run("stat", "-c", form, shared.path(index)).stdout
            == run("stat", "-c", form, bare(shared, index)).stdout
        )
    found = run("find", shared.mountpoint, "-type", "f", "-size", f"{MIB}c", "-links", "1").stdout.split()
    assert sorted(found) == sorted(str(shared.mountpoint / name) for name in listed)


def test_du_counts_the_blocks_of_the_disks(shared: PoolMount, next_index: NextIndex) -> None:
    for _ in range(3):
        make(shared, next_index())
    names = os.listdir(shared.mountpoint)
    on_disks = sum(
        allocated(Path(disk) / name) for disk in shared.disks for name in os.listdir(disk) if name in names
    )
    through = int(run("du", "--block-size=1", "--summarize", shared.mountpoint).stdout.split()[0])
    assert through == on_disks >= len(names) * MIB
    apparent = int(run("du", "--block-size=1", "--apparent-size", "-s", shared.mountpoint).stdout.split()[0])
    assert apparent == len(names) * MIB


def test_df_adds_up(shared: PoolMount) -> None:
    _, line = run(
        "df", "--block-size=1", "--output=source,fstype,size,used,avail,target", shared.mountpoint
    ).stdout.splitlines()
    source, fstype, size, used, available, target = line.split()
    assert (source, fstype, target) == ("test", "fuse.commitlogfs", str(shared.mountpoint))
    assert int(size) == int(used) + int(available) > 0


# --- out of the mount -------------------------------------------------------------------------------------


def test_reading_tools_see_the_bare_content(shared: PoolMount, next_index: NextIndex, outside: Path) -> None:
    index = next_index()
    content = make(shared, index)
    path = shared.path(index)
    assert bare(shared, index).read_bytes() == content
    assert run("sha256sum", path).stdout.split()[0] == hashlib.sha256(content).hexdigest()
    run("cmp", path, bare(shared, index))

    run("cp", path, outside / "plain")
    run("cp", "-a", path, outside / "archived")
    run("dd", f"if={path}", f"of={outside / 'dd'}", "bs=7777", "status=none")
    for name in ("plain", "archived", "dd"):
        assert (outside / name).read_bytes() == content, name
    assert (outside / "archived").stat().st_mtime_ns == path.stat().st_mtime_ns

    os.pwrite(fd := os.open(path, os.O_RDWR), b"\nneedle\nneedle\n", 1000)
    os.close(fd)
    assert run("grep", "-a", "-c", "^needle$", path).stdout == "2\n"
    with path.open("rb") as file, mmap.mmap(file.fileno(), MIB, prot=mmap.PROT_READ) as mapped:
        assert mapped[:] == bare(shared, index).read_bytes()


def test_tar_out_and_in(shared: PoolMount, next_index: NextIndex, outside: Path) -> None:
    index = next_index()
    content = make(shared, index)
    run("touch", "-d", LONG_AGO, shared.path(index))
    archive = outside / "log.tar"
    run("tar", "--create", "--format=posix", "--file", archive, "-C", shared.mountpoint, shared.path(index).name)
    with tarfile.open(archive) as tar:
        (member,) = tar.getmembers()
        assert (member.name, member.size) == (shared.path(index).name, MIB)
    shared.path(index).unlink()
    run("tar", "--extract", "--file", archive, "-C", shared.mountpoint)
    assert bare(shared, index).read_bytes() == shared.path(index).read_bytes() == content
    assert bare(shared, index).stat().st_mtime_ns == shared.path(index).stat().st_mtime_ns == LONG_AGO_NS
    # Over a segment that exists, tar removes and makes it anew.
    run("tar", "--extract", "--file", archive, "-C", shared.mountpoint)
    assert bare(shared, index).read_bytes() == content


def test_rsync_out_and_in_and_nothing_the_second_time(workdir: Path, make_pool: Callable[..., PoolMount]) -> None:
    need("rsync")
    pool = make_pool(3)
    pool.start()
    contents = {index: make(pool, index) for index in range(5)}
    for index in range(5):
        os.utime(pool.path(index), ns=(LONG_AGO_NS, LONG_AGO_NS + index))
    backup = workdir / "backup"
    sync = ("rsync", "-a", "--itemize-changes")
    backup.mkdir()
    out = run(*sync, f"{pool.mountpoint}/", f"{backup}/").stdout.splitlines()
    assert len([line for line in out if line.startswith(">f+")]) == 5
    assert run(*sync, f"{pool.mountpoint}/", f"{backup}/").stdout == ""
    assert {path.name: path.read_bytes() for path in backup.iterdir()} == {
        pool.path(index).name: content for index, content in contents.items()
    }

    for index in range(5):
        pool.path(index).unlink()
    assert (
        len(
            [
                line
                for line in run(*sync, f"{backup}/", f"{pool.mountpoint}/").stdout.splitlines()
                if line.startswith(">f+")
            ]
        )
        == 5
    )
    assert run(*sync, f"{backup}/", f"{pool.mountpoint}/").stdout == ""
    assert run(*sync, "--checksum", f"{backup}/", f"{pool.mountpoint}/").stdout == ""
    for index, content in contents.items():
        assert bare(pool, index).read_bytes() == content
        assert bare(pool, index).stat().st_mtime_ns == LONG_AGO_NS + index
    # No temporary is left on any disk.
    assert sorted(name for disk in pool.disks for name in os.listdir(disk)) == sorted(os.listdir(backup))


# --- into the mount ---------------------------------------------------------------------------------------


def test_a_source_that_has_grown_is_synced_in_place(
    workdir: Path, make_pool: Callable[..., PoolMount], outside: Path
) -> None:
    """A broker writes to the newest segment between two passes. Without --inplace, rsync would rename its copy onto
    the segment."""
    need("rsync")
    pool = make_pool(3)
    pool.start()
    source = workdir / "source"
    source.mkdir()
    for index in range(2):
        (source / pool.path(index).name).write_bytes(noise(index))
    newest, grown = source / pool.path(1).name, noise(2)
    sync = ["rsync", "-a", "--inplace", f"{source}/", f"{pool.mountpoint}/"]
    run(*sync)
    newest.write_bytes(grown)
    os.utime(newest, ns=(LONG_AGO_NS, LONG_AGO_NS))
    renamed = subprocess.run(
        ["rsync", "-a", f"{source}/", f"{pool.mountpoint}/"], capture_output=True, text=True, check=False
    )
    assert renamed.returncode == 23
    assert pool.path(1).read_bytes() == noise(1)
    run(*sync)
    assert pool.path(1).read_bytes() == grown
    assert bare(pool, 0).read_bytes() == noise(0)


def test_cp_makes_whole_reserved_segments(shared: PoolMount, next_index: NextIndex, outside: Path) -> None:
    index, sparse = next_index(), next_index()
    source = outside / "source"
    source.write_bytes(noise(index))
    os.utime(source, ns=(LONG_AGO_NS, LONG_AGO_NS))
    run("cp", "-a", source, shared.path(index))
    assert bare(shared, index).read_bytes() == noise(index)
    assert bare(shared, index).stat().st_mtime_ns == LONG_AGO_NS

    hollow = outside / "hollow"
    with hollow.open("wb") as file:
        file.truncate(MIB)
    run("cp", "--sparse=always", hollow, shared.path(sparse))
    assert allocated(shared.path(sparse)) == allocated(bare(shared, sparse)) >= MIB
    assert shared.path(sparse).read_bytes() == bytes(MIB)


def test_cp_never_overwrites_in_place(shared: PoolMount, next_index: NextIndex, outside: Path) -> None:
    index = next_index()
    content = make(shared, index)
    other = outside / "other"
    other.write_bytes(noise(10_000 + index))
    assert "Invalid argument" in run("cp", other, shared.path(index), fails=True).stderr
    assert bare(shared, index).read_bytes() == content
    run("cp", "-f", other, shared.path(index))  # removes it first
    assert bare(shared, index).read_bytes() == other.read_bytes()


def test_dd_writes_inside_a_segment(shared: PoolMount, next_index: NextIndex) -> None:
    index = next_index()
    content = make(shared, index)
    dd = ("dd", "if=/dev/zero", f"of={shared.path(index)}", "status=none")
    assert "Invalid argument" in run(*dd, "bs=4096", "count=1", fails=True).stderr  # truncates
    run(*dd, "bs=1000", "count=3", "seek=5", "conv=notrunc,fsync")
    content = content[:5000] + bytes(3000) + content[8000:]
    assert bare(shared, index).read_bytes() == content
    over = [*dd, "bs=4096", "count=2", f"seek={MIB // 4096 - 1}", "conv=notrunc"]
    if shared.passes_through:
        run(*over)  # seeking, it opens to read as well, so nobody is asked about the write
        assert shared.path(index).stat().st_size == MIB
    else:
        assert "File too large" in run(*over, fails=True).stderr
    content = content[:-4096] + bytes(4096)
    assert bare(shared, index).read_bytes() == content == shared.path(index).read_bytes()


def test_direct_io_reads_and_writes_through_the_same_bytes(shared: PoolMount, next_index: NextIndex) -> None:
    """O_DIRECT passes by the page cache of the mount; alignment is not asked for, since the disk is not direct."""
    index = next_index()
    content = make(shared, index)
    path = shared.path(index)
    with path.open("rb") as file, mmap.mmap(file.fileno(), MIB, prot=mmap.PROT_READ) as mapped:
        assert mapped[:] == content  # all pages are in the cache now
        run(
            "dd",
            "if=/dev/zero",
            f"of={path}",
            "bs=4096",
            "count=2",
            "seek=3",
            "oflag=direct",
            "conv=notrunc",
            "status=none",
        )
        content = content[: 3 * 4096] + bytes(2 * 4096) + content[5 * 4096 :]
        assert bare(shared, index).read_bytes() == content
        assert mapped[:] == content
    assert run("dd", f"if={path}", "iflag=direct", "bs=64K", "of=/dev/null", "status=none").returncode == 0
    fd = os.open(path, os.O_RDWR | os.O_DIRECT)
    try:
        if shared.passes_through:  # the disk's own rules
            with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
                os.pwrite(fd, b"odd", 12345)
        else:
            assert os.pwrite(fd, b"odd", 12345) == 3
            assert os.pread(fd, 5, 12344) == content[12344:12345] + b"odd" + content[12348:12349]
    finally:
        os.close(fd)


def test_an_mmap_writer_reaches_the_bare_file_at_msync(shared: PoolMount, next_index: NextIndex) -> None:
    index = next_index()
    fd = os.open(shared.path(index), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        os.ftruncate(fd, MIB)
        with mmap.mmap(fd, MIB, mmap.MAP_SHARED) as mapped:
            mapped[:] = noise(index)
            mapped.flush()
            assert bare(shared, index).read_bytes() == noise(index)
            mapped[4096 * 7 + 5 : 4096 * 7 + 10] = b"hello"
            mapped.flush(4096 * 7, 4096)
            assert bare(shared, index).read_bytes()[4096 * 7 + 5 :].startswith(b"hello")
    finally:
        os.close(fd)
    assert shared.path(index).read_bytes() == bare(shared, index).read_bytes()


def test_create_and_one_ftruncate_reserve_the_whole_segment(shared: PoolMount, next_index: NextIndex) -> None:
    index = next_index()
    fd = os.open(shared.path(index), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        created = os.fstat(fd)
        assert (created.st_size, created.st_blocks * 512 >= MIB) == (0, True)
        assert shared.path(index).name not in os.listdir(shared.mountpoint)
        os.ftruncate(fd, MIB)
        assert os.fstat(fd).st_blocks == created.st_blocks
        os.pwrite(fd, b"x" * 4096, MIB // 2)
        assert os.fstat(fd).st_blocks == created.st_blocks
    finally:
        os.close(fd)
    assert allocated(bare(shared, index)) == allocated(shared.path(index)) == created.st_blocks * 512
    run("truncate", "-s", MIB, shared.path(index))
    assert "Invalid argument" in run("truncate", "-s", MIB // 2, shared.path(index), fails=True).stderr


# --- names, times, owners ---------------------------------------------------------------------------------


def test_mv_in_and_out_and_never_inside(shared: PoolMount, next_index: NextIndex, outside: Path) -> None:
    index, other = next_index(), next_index()
    content = make(shared, index)
    assert "Operation not permitted" in run("mv", shared.path(index), shared.path(other), fails=True).stderr
    run("mv", shared.path(index), outside / "moved")
    assert not shared.path(index).exists()
    assert (outside / "moved").read_bytes() == content
    run("mv", outside / "moved", shared.path(index))
    assert bare(shared, index).read_bytes() == content
    assert not (outside / "moved").exists()


def test_touch_keeps_the_brokers_retention_clock(make_pool: Callable[..., PoolMount]) -> None:
    pool = make_pool(2)
    pool.start()
    make(pool, 0)
    run("touch", "-d", LONG_AGO, pool.path(0))
    run("sha256sum", pool.path(0))
    run("chmod", "0600", pool.path(0))
    assert pool.path(0).stat().st_mtime_ns == bare(pool, 0).stat().st_mtime_ns == LONG_AGO_NS
    pool.restart()
    assert pool.path(0).stat().st_mtime_ns == LONG_AGO_NS
    run("touch", pool.path(0))
    assert pool.path(0).stat().st_mtime_ns > LONG_AGO_NS
    assert bare(pool, 0).stat().st_mtime_ns == pool.path(0).stat().st_mtime_ns


def test_writes_move_the_modification_time(shared: PoolMount, next_index: NextIndex) -> None:
    index = next_index()
    make(shared, index)
    run("touch", "-d", LONG_AGO, shared.path(index))
    fd = os.open(shared.path(index), os.O_RDWR)
    try:
        os.pwrite(fd, b"x", 0)
        os.fsync(fd)
        assert os.fstat(fd).st_mtime_ns > LONG_AGO_NS
        assert bare(shared, index).stat().st_mtime_ns > LONG_AGO_NS
    finally:
        os.close(fd)


@pytest.mark.root
def test_chmod_and_chown_reach_the_bare_file(shared: PoolMount, next_index: NextIndex) -> None:
    index = next_index()
    make(shared, index)
    run("chmod", "0640", shared.path(index))
    run("chown", "1234:4321", shared.path(index))
    for path in (shared.path(index), bare(shared, index)):
        st = path.stat()
        assert (oct(st.st_mode), st.st_uid, st.st_gid) == ("0o100640", 1234, 4321)


def test_removing_with_rm(shared: PoolMount, next_index: NextIndex) -> None:
    index = next_index()
    make(shared, index)
    file = bare(shared, index)
    run("rm", shared.path(index))
    assert not file.exists()
    with pytest.raises(OSError) as gone:  # noqa: PT011
        os.stat(shared.path(index))
    assert gone.value.errno == errno.ENOENT
