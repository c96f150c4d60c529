import contextlib
import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.loop_disks import DiskFarm, mkfs_available
from support.tiny_fuse import tiny_fuse

from commitlogfs.console.errors import RefusedError
from commitlogfs.mount.location import guard
from commitlogfs.mount.location.guard import BareState, Protection

SEGMENT_NAMES = [f"{n * 2**30:020d}" for n in range(5)]
needs_root = pytest.mark.root


@pytest.fixture(params=["workdir", "ext4", "xfs", "tmpfs", "overlay"])
def directory(request: pytest.FixtureRequest, workdir: Path) -> Iterator[Path]:
    """A directory to put a mountpoint in, on each filesystem that may hold one."""
    if request.param in ("ext4", "xfs"):
        if not mkfs_available(request.param):
            pytest.skip(f"no mkfs.{request.param}")
        farm: DiskFarm = request.getfixturevalue("disk_farm")
        yield farm.add(request.param).path
        return
    if request.param == "workdir":
        yield workdir
        return
    if os.geteuid() != 0:
        pytest.skip("needs root")
    place = workdir / "mounted"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "t", str(place)], check=True)
    if request.param == "overlay":
        for name in ("lower", "upper", "work", "merged"):
            (place / name).mkdir()
        options = f"lowerdir={place}/lower,upperdir={place}/upper,workdir={place}/work"
        subprocess.run(["mount", "-t", "overlay", "o", "-o", options, f"{place}/merged"], check=True)
        yield place / "merged"
        subprocess.run(["umount", f"{place}/merged"], check=True)
    else:
        yield place
    subprocess.run(["umount", str(place)], check=True)


def test_raise_and_lower(directory: Path):
    bare = directory / "store/commitlog"
    assert guard.check_bare(bare).state is BareState.ABSENT
    former_umask = os.umask(0o077)
    try:
        raised = guard.raise_guard(bare)
    finally:
        os.umask(former_umask)
    assert raised.changed
    assert stat.S_IMODE((directory / "store").stat().st_mode) == 0o755
    assert guard.check_bare(bare).state is BareState.GUARDED

    assert not guard.raise_guard(bare).changed
    if os.geteuid() == 0:
        assert raised.protection is Protection.IMMUTABLE
    with pytest.raises(PermissionError):
        (bare / SEGMENT_NAMES[0]).touch()
    with pytest.raises(PermissionError):
        (bare / guard.GUARD_NAME).unlink()

    assert guard.lower_guard(bare)
    assert guard.check_bare(bare).state is BareState.EMPTY
    assert stat.S_IMODE(bare.stat().st_mode) == 0o755
    (bare / SEGMENT_NAMES[0]).touch()
    assert not guard.lower_guard(bare)


def test_the_guard_file_can_never_be_a_segment(workdir: Path):
    guard.raise_guard(workdir / "c")
    size = (workdir / "c" / guard.GUARD_NAME).stat().st_size
    assert size > 0
    assert size % 4096 != 0


@needs_root
def test_a_mount_over_the_guard_works_and_hides_it(workdir: Path):
    bare = workdir / "c"
    guard.raise_guard(bare)
    subprocess.run(["mount", "-t", "tmpfs", "t", str(bare)], check=True)
    try:
        assert guard.check_bare(bare).state is BareState.MOUNTED
        for act in (guard.raise_guard, guard.lower_guard):
            with pytest.raises(RefusedError, match=r"a filesystem is mounted here \(tmpfs\); unmount it"):
                act(bare)
        assert os.listdir(bare) == []
    finally:
        subprocess.run(["umount", str(bare)], check=True)
    assert guard.check_bare(bare).state is BareState.GUARDED


def test_a_commitlog_that_lies_there_is_recognised(workdir: Path):
    for name in SEGMENT_NAMES:
        (workdir / name).touch()
    bare = guard.check_bare(workdir)
    assert (bare.state, bare.segments) == (BareState.OCCUPIED, 5)
    assert bare.foreign == tuple(SEGMENT_NAMES[:3])
    with pytest.raises(RefusedError, match=r"5 segments from 00000000000000000000.*adopt"):
        guard.raise_guard(workdir)
    assert sorted(os.listdir(workdir)) == SEGMENT_NAMES


def test_foreign_files_are_named_on_one_line(workdir: Path):
    (workdir / "evil\nname\x1b").touch()
    bare = guard.check_bare(workdir)
    assert (bare.state, bare.segments) == (BareState.OCCUPIED, 0)
    assert "evil\\nname\\x1b" in bare.message
    assert "\n" not in bare.message
    assert "adopt" not in bare.message


def test_symlinks_and_files_are_refused(workdir: Path):
    (workdir / "target").mkdir()
    (workdir / "link").symlink_to("target")
    (workdir / "file").touch()
    assert guard.check_bare(workdir / "link").state is BareState.SYMLINK
    assert guard.check_bare(workdir / "file").state is BareState.NOT_A_DIRECTORY
    assert guard.check_bare(workdir / "file/below").state is BareState.NOT_A_DIRECTORY
    for name in ("link", "file", "file/below"):
        with pytest.raises(RefusedError):
            guard.raise_guard(workdir / name)
        with pytest.raises(RefusedError):
            guard.lower_guard(workdir / name)
    assert os.listdir(workdir / "target") == []


@pytest.mark.parametrize("planted", ["fifo", "symlink", "directory"])
def test_something_planted_under_the_guards_name(workdir: Path, planted: str):
    place = workdir / guard.GUARD_NAME
    if planted == "fifo":
        os.mkfifo(place)
    elif planted == "symlink":
        place.symlink_to("/etc/passwd")
    else:
        place.mkdir()
    assert guard.check_bare(workdir).state is BareState.OCCUPIED
    with pytest.raises(RefusedError):
        guard.raise_guard(workdir)
    with contextlib.suppress(RefusedError):
        assert not guard.lower_guard(workdir)
    assert os.listdir(workdir) == [guard.GUARD_NAME]


@needs_root
def test_a_torn_guard_file_is_mended(workdir: Path):
    bare = workdir / "c"
    guard.raise_guard(bare)
    whole = (bare / guard.GUARD_NAME).read_bytes()
    os.truncate(bare / guard.GUARD_NAME, 0)
    assert guard.raise_guard(bare).changed
    assert (bare / guard.GUARD_NAME).read_bytes() == whole
    assert guard.lower_guard(bare)


def _unprivileged(code: str, *args: str) -> str:
    """Run `code` in a child as nobody, who cannot set inode flags. Returns its wait status."""
    child = os.fork()
    if child:
        return str(os.waitpid(child, 0)[1])
    try:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        exec(code, {"args": args, "guard": guard, "Protection": Protection})  # noqa: S102  our own text
        os._exit(0)
    except BaseException as error:
        os.write(2, f"{error!r}\n".encode())
        os._exit(1)


@needs_root
def test_without_the_capability_the_mode_is_the_protection(workdir: Path):
    bare = workdir / "c"
    bare.mkdir()
    bare.chmod(0o750)
    os.chown(bare, 65534, 65534)
    code = "raised = guard.raise_guard(args[0]); assert raised.protection is Protection.MODE and raised.changed"
    assert _unprivileged(code, str(bare)) == "0"
    assert stat.S_IMODE(bare.stat().st_mode) == 0o555
    assert _unprivileged("assert not guard.raise_guard(args[0]).changed", str(bare)) == "0"
    assert _unprivileged("open(args[0] + '/x', 'w')", str(bare)) != "0"
    assert _unprivileged("assert guard.lower_guard(args[0])", str(bare)) == "0"
    assert stat.S_IMODE(bare.stat().st_mode) == 0o750
    assert os.listdir(bare) == []


def test_protect_can_be_left_out(workdir: Path):
    bare = workdir / "c"
    raised = guard.raise_guard(bare, protect=False)
    assert raised.protection is Protection.FILE_ONLY
    assert guard.check_bare(bare).state is BareState.GUARDED
    (bare / "file").touch()


@needs_root
def test_a_read_only_filesystem_is_refused_in_words(disk_farm: DiskFarm):
    disk = disk_farm.add()
    (disk.path / "c").mkdir()
    disk.remount_ro()
    with pytest.raises(RefusedError, match="cannot raise the guard: Read-only"):
        guard.raise_guard(disk.path / "c")


@needs_root
@pytest.mark.mounted
def test_a_hung_mount_on_top_does_not_hold_anybody_up(workdir: Path):
    bare = workdir / "c"
    guard.raise_guard(bare)
    with tiny_fuse(bare) as daemon:
        daemon.send_signal(signal.SIGSTOP)
        assert guard.check_bare(bare).state is BareState.MOUNTED
        # Even if it came in after mountinfo was read.
        with pytest.raises(RefusedError, match="just been mounted"), guard._open_bare(str(bare)):
            pass
    assert guard.check_bare(bare).state is BareState.GUARDED


@needs_root
def test_parents_that_are_made_get_the_given_owner(directory: Path):
    before = directory.stat()
    guard.raise_guard(directory / "a/b/commitlog", owner=(1234, 5678))
    owners = [
        (p.stat().st_uid, p.stat().st_gid)
        for p in (directory / "a", directory / "a/b", directory / "a/b/commitlog")
    ]
    guard.lower_guard(directory / "a/b/commitlog")
    assert owners == [(1234, 5678), (1234, 5678), (0, 0)]
    assert (directory.stat().st_uid, directory.stat().st_gid) == (before.st_uid, before.st_gid)
    assert stat.S_IMODE((directory / "a/b").stat().st_mode) == 0o755
    guard.raise_guard(directory / "a/commitlog", owner=(4321, 5678))
    guard.lower_guard(directory / "a/commitlog")
    assert (directory / "a").stat().st_uid == 1234
