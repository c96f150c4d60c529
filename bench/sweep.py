"""Removes the remains of a run of the tests, the demo or a benchmark: processes, mounts, loop devices, directories.

A run makes everything in one base directory, `commitlogfs-KIND-PID-RANDOM`, whose `owner.json` tells which
process made it and which directories elsewhere it has claimed; everything it starts inherits $COMMITLOGFS_RUNS,
which holds the base directory's path. So what belongs to a run is certain, and a run that still lives is never
touched.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from commitlogfs.mount.linux import mountinfo
from commitlogfs.mount.location import guard

KINDS = ("test", "demo", "bench")
RUNS_VARIABLE = "COMMITLOGFS_RUNS"
"""Base directories of the runs that a process belongs to, colons between: a test runs the demo."""

SOCKETS_PARENT = Path("/run")
"""Where base directories of sockets are made, whose paths must be short."""

_RUNS_PREFIX = os.fsencode(f"{RUNS_VARIABLE}=")
_OWNER = "owner.json"
_MARK = ".claimed-by"
_EXIT_TIMEOUT_S = 5.0


def base_parent() -> Path:
    """Where base directories are made: $TMPDIR, else /var/tmp (a disk, where /tmp may be memory)."""
    return Path(os.environ.get("TMPDIR") or "/var/tmp").resolve()  # noqa: S108


def prefix_of(kind: str) -> str:
    return f"commitlogfs-{kind}-"


def create_base(kind: str, parent: Path | None = None) -> Path:
    """A new base directory, in `parent` (`base_parent` by default), that this process owns."""
    base = Path(tempfile.mkdtemp(prefix=f"{prefix_of(kind)}{os.getpid()}-", dir=parent or base_parent()))
    base.chmod(0o755)  # tests act as other users, too
    (base / _OWNER).write_text(json.dumps({**_identity(os.getpid()), "claimed": []}))
    return base


def claim(base: Path, directory: Path) -> None:
    """Record that the run has just made `directory` outside of its base directory: it is removed with its content.

    Only this directory is removed: not another one with the same name, and not after a reboot.
    """
    (directory / _MARK).write_text(str(base))
    state = directory.stat()
    owner = json.loads((base / _OWNER).read_text())
    owner["claimed"].append({"path": str(directory), "device": state.st_dev, "inode": state.st_ino})
    new = base / f"{_OWNER}.new"
    new.write_text(json.dumps(owner))
    new.replace(base / _OWNER)


@contextlib.contextmanager
def belonging_to(base: Path) -> Iterator[None]:
    """Processes started inside belong to this run."""
    former = os.environ.get(RUNS_VARIABLE)
    os.environ[RUNS_VARIABLE] = f"{former}:{base}" if former else str(base)
    try:
        yield
    finally:
        if former is None:
            del os.environ[RUNS_VARIABLE]
        else:
            os.environ[RUNS_VARIABLE] = former


@contextlib.contextmanager
def run(kind: str, tell: Callable[[str], None], parent: Path | None = None) -> Iterator[Path]:
    """A base directory for the length of the block, removed at its end. Removes the remains of aborted runs
    before."""
    for line in sweep_stale():
        tell(f"removed, left by an aborted run: {line}")
    base = create_base(kind, parent)
    try:
        with belonging_to(base):
            yield base
    finally:
        for line in sweep(base):
            tell(f"removed at the end: {line}")


def sweep_stale() -> list[str]:
    """Remove every base directory whose run has ended. Returns a line for each thing found."""
    found = []
    with _only_sweeper():
        for base in _bases():
            if _is_own_directory(base) and _is_dead(base):
                found += [f"{base.name}: {line}" for line in sweep(base)] or [f"{base.name}: files only"]
    return found


@contextlib.contextmanager
def _only_sweeper() -> Iterator[None]:
    """The workers of a test run start together; two of them in one tree would each leave what the other began."""
    fd = os.open(base_parent(), os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _is_own_directory(base: Path) -> bool:
    try:
        state = base.lstat()
    except FileNotFoundError:  # its run has just ended, and removed it
        return False
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid()


def _bases() -> list[Path]:
    parents = {base_parent(), SOCKETS_PARENT}
    return sorted(base for parent in parents for kind in KINDS for base in parent.glob(prefix_of(kind) + "*"))


def sweep(base: Path) -> list[str]:
    """End, unmount, detach and delete everything of one run. Returns a line for each thing found.

    Does not raise if something cannot be removed: the next run tries again.
    """
    found = kill_processes(base)
    claimed = _claimed(base)
    for directory in (*claimed, base):  # disks lie in the base directory, mounts that use them elsewhere
        found += detach_mounts(directory)
    found += _free_loop_devices(base)
    for directory in (*claimed, base):
        with contextlib.suppress(OSError):
            remove_tree(directory)
    return found


def mounts_of(base: Path) -> tuple[mountinfo.MountEntry, ...]:
    """All mounts below the base directory, in mount order."""
    return mountinfo.mounts_below(base)


def processes_of(base: Path) -> list[int]:
    """Process ids of the running processes that this run started."""
    return [pid for pid in _all_pids() if pid != os.getpid() and _is_marked(pid, base)]


def kill_processes(base: Path) -> list[str]:
    """Kill the running processes that this run started, and wait for their end. Repeats this until none is left:
    of a daemon and its keeper, each starts the other one again."""
    found: list[str] = []
    deadline = time.monotonic() + _EXIT_TIMEOUT_S
    while marked := processes_of(base):
        for pid in marked:
            with contextlib.suppress(OSError):
                line = f"process {pid} ({Path(f'/proc/{pid}/comm').read_text().strip()})"
                found += [line] if line not in found else []
                os.kill(pid, signal.SIGKILL)
        while any(_is_running(pid) for pid in marked):
            if time.monotonic() > deadline:
                return found
            time.sleep(0.02)
    return found


def detach_mounts(base: Path, keep: Collection[int] = ()) -> list[str]:
    """Unmount everything below the base directory, by force and lazily: the run has ended.

    Mounts whose ids are in `keep` stay. Returns lines that say what was mounted.
    """
    found = []
    for entry in reversed(mounts_of(base)):
        if entry.mount_id in keep:
            continue
        found.append(f"mount {entry.mountpoint} ({entry.fstype})")
        # By force for FUSE: this aborts the connection and frees processes that hang in it.
        force = ["-f"] if mountinfo.is_fuse(entry) else []
        if os.geteuid() == 0:
            command = ["umount", "-i", "-l", *force, entry.mountpoint]
        else:
            command = ["fusermount3", "-u", "-z", entry.mountpoint]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, capture_output=True, check=False, timeout=30)
    return found


def remove_tree(directory: Path) -> None:
    """Delete a directory with everything in it, immutable or unwritable directories too. Never crosses a mount."""
    if mountinfo.mounts_below(directory) or mountinfo.find_mount(directory) is not None:
        raise OSError(f"{directory}: still has mounts")
    _make_writable(directory)
    for place, subdirectories, _files in os.walk(directory):
        for name in subdirectories:
            _make_writable(Path(place, name))  # before the walk enters it
    shutil.rmtree(directory)


def _make_writable(directory: Path) -> None:
    if directory.is_symlink():
        return
    with contextlib.suppress(PermissionError):
        if directory.stat().st_uid == os.geteuid():
            directory.chmod(0o700)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if guard.is_immutable(fd) and guard.set_immutable(fd, False):
            os.fchmod(fd, 0o700)
    finally:
        os.close(fd)


def _claimed(base: Path) -> list[Path]:
    """The claimed directories that are certainly still those of the run."""
    try:
        owner = json.loads((base / _OWNER).read_text())
        if owner["boot_id"] != _identity(os.getpid())["boot_id"]:
            return []
        return [Path(entry["path"]) for entry in owner["claimed"] if _is_still(base, entry)]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _is_still(base: Path, entry: dict[str, Any]) -> bool:
    directory = Path(entry["path"])
    try:
        state = directory.lstat()
        marked = (directory / _MARK).read_text() == str(base)
    except OSError:
        return False
    foreign = any(not mountinfo.is_commitlogfs(mount) for mount in mountinfo.mounts_below(directory))
    return marked and not foreign and (state.st_dev, state.st_ino) == (entry["device"], entry["inode"])


def _free_loop_devices(base: Path) -> list[str]:
    found = []
    for device in Path("/sys/block").glob("loop*"):
        with contextlib.suppress(OSError):
            backing = (device / "loop/backing_file").read_text().rstrip("\n")
            if backing.startswith(f"{base}/"):
                found.append(f"/dev/{device.name} ({backing})")
                subprocess.run(["losetup", "-d", f"/dev/{device.name}"], capture_output=True, check=False)
    return found


def _identity(pid: int) -> dict[str, object]:
    return {
        "pid": pid,
        "start_ticks": _start_ticks(pid),
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "pid_namespace": str(Path("/proc/self/ns/pid").readlink()),
    }


def _is_dead(base: Path) -> bool:
    """Whether the run that made `base` has ended for certain. In doubt it counts as running."""
    try:
        owner = json.loads((base / _OWNER).read_text())
        now = _identity(os.getpid())
        if owner["boot_id"] != now["boot_id"]:
            return True
        if owner["pid_namespace"] != now["pid_namespace"]:
            return False
        return bool(_start_ticks(owner["pid"]) != owner["start_ticks"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _start_ticks(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(text.rpartition(")")[2].split()[19])


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _is_marked(pid: int, base: Path) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    runs = [value for line in environment if (value := line.removeprefix(_RUNS_PREFIX)) != line]
    return any(os.fsencode(base) in value.split(b":") for value in runs)


def _is_running(pid: int) -> bool:
    """False for a zombie too: its files and mounts are gone, and only its parent can reap it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
