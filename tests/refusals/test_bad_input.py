"""Bad input: the documented exit status, one readable line, no traceback, nothing changed, nothing mounted."""

import contextlib
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.command_line import LOAD_VERB, Ran
from support.loop_disks import DiskFarm, DiskWithoutExtents
from support.pools import MIB, PoolMount
from support.snapshots import snapshot
from support.waiting import PATIENCE_S

from commitlogfs.mount.linux import mountinfo

pytestmark = [pytest.mark.mounted, pytest.mark.full]

USAGE, UNREACHABLE, REFUSED = 2, 3, 4
NOBODY = 65534


@pytest.fixture
def pool(make_pool: Callable[..., PoolMount]) -> Iterator[PoolMount]:
    """A pool of two directories, born, not mounted; the runtime directory is there already."""
    made = make_pool(2)
    made.runtime.mkdir(mode=0o700)
    yield made
    for entry in reversed(mountinfo.mounts_below(made.workdir)):
        subprocess.run(["umount", entry.mountpoint], check=False, capture_output=True)


@pytest.fixture
def unborn(make_pool: Callable[..., PoolMount]) -> PoolMount:
    """Two directories and a configuration: what never gets as far as the disks needs no more."""
    made: PoolMount = make_pool(2, born=False)
    made.write_config()
    made.runtime.mkdir(mode=0o700)
    return made


def contents(pool: PoolMount) -> dict[str, object]:
    found: dict[str, object] = dict(snapshot(pool.workdir))
    # Lock files and logs in the runtime directory are no harm.
    return {path: entry for path, entry in found.items() if not path.startswith(str(pool.runtime))}


def run(pool: PoolMount, *arguments: object) -> Ran:
    return pool.cli(*arguments)  # type: ignore[arg-type]


def check(pool: PoolMount, ran: Ran, status: int, *words: str) -> None:
    assert ran.status == status, (ran.status, ran.out, ran.err)
    assert "Traceback" not in ran.out + ran.err
    lines = [line for line in ran.err.splitlines() if not line[:4].isdigit()]  # a foreground mount's log
    assert len(lines) == 1, ran.err
    assert lines[0].startswith("commitlogfs: ")
    for word in words:
        assert word in lines[0], lines[0]


def refused(pool: PoolMount, status: int, *words: str, arguments: tuple[object, ...] | None = None) -> None:
    """In the foreground and as a daemon: nothing is mounted, nothing of ours changed."""
    before, mounts = contents(pool), mountinfo.mounts_below(pool.workdir)
    if arguments is not None:
        check(pool, run(pool, *arguments), status, *words)
    else:
        check(pool, run(pool, "mount", pool.config), status, *words)
        check(pool, run(pool, "mount", "--daemon", pool.config), status, *words)
    assert contents(pool) == before
    assert mountinfo.mounts_below(pool.workdir) == mounts


# --- the configuration file --------------------------------------------------------------------------


def edited(old: str, new: str) -> Callable[[PoolMount], None]:
    def edit(pool: PoolMount) -> None:
        text = pool.config.read_text()
        assert old in text
        pool.config.write_text(text.replace(old, new, 1))

    return edit


def with_head(line: str) -> Callable[[PoolMount], object]:
    return lambda pool: pool.config.write_text(f"{line}\n{pool.config.read_text()}")


def with_thresholds(line: str) -> Callable[[PoolMount], None]:
    return edited("[[disks]]", f"[thresholds]\n{line}\n[[disks]]")


def raw(content: bytes) -> Callable[[PoolMount], object]:
    return lambda pool: pool.config.write_bytes(content)


def second_disk(path: str) -> Callable[[PoolMount], None]:
    def edit(pool: PoolMount) -> None:
        edited(f'"{pool.disks[1]}"', '"' + path.format(pool=pool) + '"')(pool)

    return edit


def mountpoint(path: str) -> Callable[[PoolMount], None]:
    def edit(pool: PoolMount) -> None:
        edited(f'"{pool.mountpoint}"', '"' + path.format(pool=pool) + '"')(pool)

    return edit


CONFIGURATIONS = {
    "misspelt key": (with_head("mount_point = 1"), "did you mean mountpoint?"),
    "unknown key": (with_head("zzz = 1"), "zzz: unknown key"),
    "key in the wrong table": (with_head("force = 80"), "force belongs in a [thresholds] table"),
    "unknown value": (with_head('placement = "round-robbin"'), "round-robin"),
    "size of nothing": (edited(f"segment_size = {MIB}", "segment_size = 0"), "segment_size: "),
    "negative size": (edited(f"segment_size = {MIB}", "segment_size = -4096"), "segment_size: "),
    "odd size": (edited(f"segment_size = {MIB}", "segment_size = 5000"), "the nearest sizes are 4096 or 8192"),
    "size too large": (edited(f"segment_size = {MIB}", 'segment_size = "2GiB"'), "segment_size: "),
    "size in words": (edited(f"segment_size = {MIB}", 'segment_size = "large"'), "segment_size: "),
    "threshold of 0": (with_thresholds("force = 0"), "thresholds.force"),
    "threshold of 101": (with_thresholds("full = 101"), "thresholds.full"),
    "negative threshold": (with_thresholds("clean = -1"), "thresholds.clean"),
    "thresholds out of order": (with_thresholds("clean = 80\nforce = 70"), "thresholds."),
    "resume above force": (with_thresholds("resume = 86"), "thresholds.resume"),
    "threshold in words": (with_thresholds('force = "85%"'), "thresholds.force"),
    "no disk": (lambda pool: pool.config.write_text(f'mountpoint = "{pool.mountpoint}"\n') and None, "disks"),
    "same disk twice": (second_disk("{pool.disks[0]}"), "name each disk once"),
    "same disk twice, spelt differently": (second_disk("{pool.workdir}//disk0/./"), "name each disk once"),
    "disk inside a disk": (second_disk("{pool.disks[0]}/sub"), "overlap"),
    "disk with ..": (second_disk("{pool.workdir}/x/../disk0"), "has '..'"),
    "disk inside the mountpoint": (second_disk("{pool.mountpoint}/disk"), "is inside the mountpoint"),
    "mountpoint inside a disk": (mountpoint("{pool.disks[0]}/store"), "is inside disks[0]"),
    "disk = mountpoint": (mountpoint("{pool.disks[0]}"), "inside"),
    "relative mountpoint": (mountpoint("store"), "is not absolute"),
    "not TOML": (raw(b"mountpoint = \n"), "not valid TOML"),
    "not UTF-8": (raw(b"# x\nmountpoint = '\xff'\n"), "line 2 is not UTF-8"),
    "empty": (raw(b""), "2 problems"),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_configuration(unborn: PoolMount, name: str) -> None:
    edit, words = CONFIGURATIONS[name]
    edit(unborn)
    if name == "empty":  # several problems: a heading, and one indented line for each
        ran = run(unborn, "mount", unborn.config)
        assert ran.status == USAGE
        assert [line[:2] for line in ran.err.splitlines()[1:]] == ["  ", "  "]
        return
    refused(unborn, USAGE, str(unborn.config), words, arguments=("mount", unborn.config))


def test_configuration_file_missing(unborn: PoolMount) -> None:
    unborn.config.unlink()
    refused(unborn, USAGE, f"{unborn.config}: no such file")
    unborn.config.mkdir()
    refused(unborn, USAGE, f"{unborn.config}: cannot be read (Is a directory)")


def test_configuration_of_an_impossible_name(unborn: PoolMount) -> None:
    bad = unborn.config.with_name("-bad name.toml")
    unborn.config.rename(bad)
    refused(unborn, USAGE, "cannot be a mount's name", arguments=("mount", f"./{os.path.relpath(bad)}"))


# --- the command line --------------------------------------------------------------------------------

COMMANDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "unknown verb": (("mont",), ("mont",)),
    "unknown option": (("mount", "--deamon", "x"), ("--deamon",)),
    "mount of nothing": (("mount",), ("no configuration given",)),
    "mount --init without a mountpoint": (("mount", "--init", "/a,/b"), ("no mountpoint given",)),
    "mount --init with a gap": (("mount", "--init", "/a,,/b", "/m"), ("empty",)),
    "mount --init with a bad size": (("mount", "--init", "/a", "--segment-size", "1XB", "/m"), ("--segment-size",)),
    "mount --init inside a disk": (("mount", "--init", "/a", "/a/b"), ("/a/b",)),
    "unknown name": (("mount", "no-such-name"), ("no such configuration",)),
    "impossible name": (("mount", ""), ()),
    "umount of nothing": (("umount",), ()),
    "umount of an unknown name": (("umount", "no-such-name"), ("no such configuration",)),
    "status of an impossible name": (("status", "a b"), ("not a mount name",)),
    "ready with a bad number": (("ready", "--wait", "soon", "/x"), ("'--wait'", "number")),
    "ready with a negative wait": (("ready", "--wait", "-1", "/x"), ("'--wait'", "0")),
    "init of nothing": (("init",), ("either a configuration",)),
    "init with a bad owner": (
        ("init", "--disks", "/a", "--owner", "no-such-user"),
        ("no such user", "`useradd --system no-such-user`"),
    ),
    "init with a bad mode": (("init", "--disks", "/a", "--mode", "9"), ("--mode",)),
    "init with a bad size": (("init", "--disks", "/a", "--segment-size", "5"), ("multiple of 4096",)),
    "one argument too many": (("umount", "/a", "/b"), ("/b",)),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_command_line(unborn: PoolMount, name: str) -> None:
    arguments, words = COMMANDS[name]
    refused(unborn, USAGE, *words, arguments=arguments)


# --- disks -------------------------------------------------------------------------------------------


def test_same_disk_by_symlink_and_by_bind_mount(pool: PoolMount) -> None:
    other = pool.workdir / "other"
    other.symlink_to(pool.disks[0])
    second_disk("{pool.workdir}/other")(pool)
    before = contents(pool)
    ran = run(pool, "mount", pool.config)
    assert ran.status == REFUSED
    assert (
        f"{other}: the same directory as {pool.disks[0]} (by a symlink or a bind mount); name each disk once"
        in ran.err
    )
    assert ran.err.count(str(other)) == 1, "reported once"
    check(pool, run(pool, "init", pool.config), REFUSED, "the same directory as", "name each disk once")
    assert contents(pool) == before
    other.unlink()
    other.mkdir()
    subprocess.run(["mount", "--bind", pool.disks[0], other], check=True)
    ran = run(pool, "mount", pool.config)
    assert ran.status == REFUSED
    assert f"{other}: the same directory as {pool.disks[0]}" in ran.err
    subprocess.run(["umount", other], check=True)


def test_two_disks_on_one_filesystem_work_with_a_warning(pool: PoolMount) -> None:
    pool.start()
    codes = [finding["code"] for finding in pool.status()["findings"]]
    assert codes.count("disks-share-filesystem") == 1
    pool.require_logged("event=finding code=disks-share-filesystem")
    pool.make_segments([0])


@pytest.mark.root
@pytest.mark.parametrize("hidden_by", ["symlink", "bind mount"])
def test_a_mountpoint_inside_a_disk_in_disguise(pool: PoolMount, hidden_by: str) -> None:
    """A stray directory in a disk keeps a native broker from starting: not even the guard is put there."""
    door = pool.workdir / "door"
    if hidden_by == "symlink":
        door.symlink_to(pool.disks[0])
    else:
        door.mkdir()
        subprocess.run(["mount", "--bind", pool.disks[0], door], check=True)
    mountpoint("{pool.workdir}/door/store/commitlog")(pool)
    refused(pool, REFUSED, "is inside the disk", str(pool.disks[0]))


def test_a_disk_inside_the_mountpoint_in_disguise(pool: PoolMount) -> None:
    inner = pool.mountpoint / "disk"
    inner.parent.mkdir(parents=True)
    shutil.move(pool.disks[1], inner)
    Path(pool.disks[1]).symlink_to(inner)
    refused(pool, REFUSED, f"{pool.mountpoint}: is not empty (disk)")


@pytest.mark.root
@pytest.mark.parametrize("fstype", ["ramfs", "vfat", "btrfs"])
def test_a_filesystem_that_cannot_keep_the_promises(pool: PoolMount, fstype: str) -> None:
    place = pool.workdir / "unsuitable"
    place.mkdir()
    if fstype == "ramfs":
        subprocess.run(["mount", "-t", "ramfs", "none", place], check=True)
    else:
        tool = shutil.which(f"mkfs.{fstype}", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        if tool is None:
            pytest.skip(f"no mkfs.{fstype}")
        image = pool.workdir / "image"
        with image.open("wb") as file:
            file.truncate(128 * MIB)
        subprocess.run([tool, image], check=True, capture_output=True)
        subprocess.run(["mount", "-o", "loop", image, place], check=True)
    try:
        (place / "disk").mkdir()
        check(pool, run(pool, "init", "--disks", place / "disk"), REFUSED, f"is on {fstype}", "use ext4 or xfs")
        check(pool, run(pool, "init", "--disks", place / "new"), REFUSED, f"is on {fstype}")
        assert os.listdir(place) == ["disk"]
        assert os.listdir(place / "disk") == []
        second_disk("{pool.workdir}/unsuitable/disk")(pool)
        ran = run(pool, "mount", pool.config)
        assert ran.status == REFUSED
        assert f"{place}/disk: is on {fstype}" in ran.err
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.root
@pytest.mark.parametrize("verb", ["init", "adopt", "disk add"])
def test_an_ext4_that_cannot_reserve_space(pool: PoolMount, disk_farm: DiskFarm, verb: str) -> None:
    directory = disk_farm.add_of(DiskWithoutExtents).path / "disk"
    directory.mkdir()
    if verb == "adopt":
        (directory / f"{0:020d}").write_bytes(bytes(pool.segment_size))
    before = sorted(os.listdir(directory))
    if verb == "disk add":
        pool.start("--watchdog", "0")
        ran = run(pool, "disk", "add", directory, pool.name)
        assert ran.status == REFUSED
        pool.stop()
    else:
        ran = run(pool, verb, "--disks", directory)
        assert ran.status == REFUSED
    assert f"{directory}: " in ran.err
    assert "cannot reserve space (fallocate)" in ran.err
    assert (sorted(os.listdir(directory)), os.listxattr(directory)) == (before, [])


# --- the mountpoint ----------------------------------------------------------------------------------


@pytest.mark.root
def test_another_filesystem_at_the_mountpoint(pool: PoolMount) -> None:
    pool.mountpoint.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", pool.mountpoint], check=True)
    refused(pool, REFUSED, f"{pool.mountpoint}: a filesystem is mounted here (tmpfs); unmount it")
    check(pool, run(pool, "umount", pool.config), UNREACHABLE, "no commitlogfs is mounted here")
    check(pool, run(pool, "ready", pool.config), UNREACHABLE, "a tmpfs filesystem is mounted here")


def test_a_mountpoint_that_is_not_empty(pool: PoolMount) -> None:
    pool.mountpoint.mkdir(parents=True)
    (pool.mountpoint / "note\n").touch()
    refused(pool, REFUSED, f"{pool.mountpoint}: is not empty (note\\n)", "empty it or choose another mountpoint")


def test_a_commitlog_at_the_mountpoint(pool: PoolMount) -> None:
    pool.mountpoint.mkdir(parents=True)
    (pool.mountpoint / pool.path(0).name).write_bytes(bytes(4096))
    refused(pool, REFUSED, "holds a RocketMQ commitlog (1 segments from ", "`commitlogfs adopt`")


def test_a_mountpoint_that_is_no_directory(pool: PoolMount) -> None:
    pool.mountpoint.parent.mkdir(parents=True)
    pool.mountpoint.write_bytes(b"file")
    refused(pool, REFUSED, f"{pool.mountpoint}: is not a directory")
    pool.mountpoint.unlink()
    pool.mountpoint.symlink_to(pool.workdir)
    refused(pool, REFUSED, f"{pool.mountpoint}: is a symbolic link; give the directory that it points to")
    pool.mountpoint.unlink()
    pool.mountpoint.parent.rmdir()
    pool.mountpoint.parent.write_bytes(b"file")
    refused(pool, REFUSED, "a parent of it is not a directory")


# --- the machine -------------------------------------------------------------------------------------


# A machine where everybody may open /dev/fuse.
_OPEN_FUSE = """
set -e
test -e $0/fuse || mknod -m 666 $0/fuse c 10 229
mount --bind $0/fuse /dev/fuse
exec "$@"
"""
_AS_NOBODY = f"""{LOAD_VERB}
import os, sys
from commitlogfs.mount import serve
load_verb(sys.argv[1])
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
sys.exit(cli.main(sys.argv[1:]))
"""


def as_nobody(pool: PoolMount, *arguments: object) -> Ran:
    runtime = pool.workdir / "nobody-run"
    runtime.mkdir(exist_ok=True)
    os.chown(runtime, NOBODY, NOBODY)
    done = subprocess.run(
        [
            *("unshare", "--mount", "--propagation", "private", "sh", "-c", _OPEN_FUSE, str(runtime)),
            *(sys.executable, "-c", _AS_NOBODY, *map(str, arguments)),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "COMMITLOGFS_RUNTIME_DIR": str(runtime), "HOME": "/nonexistent", "COLUMNS": "200"},
        timeout=PATIENCE_S,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.mark.root
def test_without_permission(pool: PoolMount) -> None:
    for disk in pool.disks:
        os.chmod(disk, 0o700)
    # The daemon itself: another program cannot be started by a user who cannot read the installation.
    ran = as_nobody(pool, "mount", "--no-keeper", pool.config)
    assert ran.status == REFUSED, ran.err
    assert "Traceback" not in ran.err
    for disk in pool.disks:
        assert f"{disk}: permission denied\n" in ran.err
    assert ran.err.count("  -> run as root or as the directory's owner [disk-missing]\n") == 1
    assert mountinfo.mounts_below(pool.workdir) == ()
    check(pool, as_nobody(pool, "init", "--disks", pool.disks[0]), REFUSED, f"{pool.disks[0]}: permission denied")
    os.chmod(pool.config, 0o600)
    check(pool, as_nobody(pool, "mount", "--no-keeper", pool.config), USAGE, "cannot be read (Permission denied)")
    os.chmod(pool.config, 0o644)
    pool.mountpoint.mkdir(parents=True)
    os.chmod(pool.mountpoint.parent, 0o700)
    check(pool, as_nobody(pool, "mount", "--no-keeper", pool.config), REFUSED, str(pool.mountpoint))
    check(pool, as_nobody(pool, "umount", pool.mountpoint), UNREACHABLE, "no commitlogfs is mounted here")


_NO_FUSE = """
set -e
mount --bind /dev/null /dev/fuse
exec "$@"
"""


@pytest.mark.root
@pytest.mark.parametrize("options", [(), ("--daemon",)])
def test_without_dev_fuse(pool: PoolMount, options: tuple[str, ...]) -> None:
    before = contents(pool)
    done = subprocess.run(
        [
            *("unshare", "--mount", "--propagation", "private", "sh", "-c", _NO_FUSE, "sh"),
            *(sys.executable, "-m", "commitlogfs.mount.cli", "mount", *options, str(pool.config)),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, **pool.env},
        timeout=PATIENCE_S,
        check=False,
    )
    check(pool, Ran(done.returncode, done.stdout, done.stderr), REFUSED, "/dev/fuse: not the FUSE device")
    assert contents(pool) == before
    assert stat.S_ISCHR(os.stat("/dev/fuse").st_mode)


def test_runtime_directory_of_somebody_else(pool: PoolMount) -> None:
    shutil.rmtree(pool.runtime)
    pool.runtime.symlink_to(pool.workdir)
    with contextlib.ExitStack() as stack:
        stack.callback(pool.runtime.unlink)
        before = contents(pool)
        check(
            pool,
            run(pool, "mount", pool.config),
            REFUSED,
            f"{pool.runtime}: is not a directory, or is a symbolic link",
        )
        assert contents(pool) == before
