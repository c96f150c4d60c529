"""Facts from the kernel and the installation: versions, mounts, block devices, processes, limits, units.

Everything is read from /proc and /sys or by child processes; no disk and no mount is touched.
"""

import contextlib
import os
import platform
import re
import resource
import shutil
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any, Final

from commitlogfs.console.version import VERSION
from commitlogfs.mount.debugging.children import output_of
from commitlogfs.mount.debugging.pieces import NotCollectedError
from commitlogfs.mount.linux import mountinfo

_DEVICE_FILES: Final = (
    *("size", "ro", "stat", "inflight", "queue/rotational", "queue/scheduler", "queue/logical_block_size"),
    *("queue/nr_requests", "queue/write_cache", "device/model", "device/vendor", "device/state", "dm/name"),
)
"""Attributes below /sys/dev/block/MAJOR:MINOR. Serial numbers are left out."""
_LIMITS: Final = ("vm/max_map_count", "fs/file-max", "fs/nr_open", "fs/file-nr", "vm/dirty_ratio", "vm/swappiness")
_UNIT_PROPERTIES: Final = (
    *("Id", "LoadState", "ActiveState", "SubState", "Result", "UnitFileState", "FragmentPath", "DropInPaths"),
    *("MainPID", "NRestarts", "ExecMainStatus", "ExecMainStartTimestamp", "StatusText", "NFileDescriptorStore"),
    *("LimitNOFILE", "MemoryCurrent", "OOMScoreAdjust", "WatchdogUSec", "User", "ActiveEnterTimestamp"),
)
"""Not Environment=, which may hold secrets of somebody's drop-in."""


def versions(daemon_pid: int | None) -> dict[str, Any]:
    uname = os.uname()
    return {
        "commitlogfs": VERSION,
        "kernel": f"{uname.sysname} {uname.release} {uname.version} {uname.machine}",
        "distribution": _release(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "libraries": _libraries(),
        "libfuse": _libfuse(daemon_pid),
        "processors": os.cpu_count(),
        "memory": _text("/proc/meminfo").splitlines()[:5],
        "uptime_and_load": [_text("/proc/uptime"), _text("/proc/loadavg")],
        "pressure": {kind: _text(f"/proc/pressure/{kind}").splitlines() for kind in ("cpu", "io", "memory")},
    }


def _release() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return ""


def _libraries() -> dict[str, str]:
    """Versions of the installed libraries that the project names, those of extras too."""
    found = {}
    for requirement in requires("commitlogfs") or ():
        match = re.match(r"[A-Za-z0-9._-]+", requirement)
        if match is not None:
            with contextlib.suppress(PackageNotFoundError):
                found[match[0]] = version(match[0])
    return dict(sorted(found.items()))


def _libfuse(daemon_pid: int | None) -> dict[str, str | None]:
    """The library that the daemon has loaded, and the version of the tool that mounts for other users."""
    loaded = None
    if daemon_pid is not None:
        match = re.search(r"libfuse3\.so\.[0-9.]+", _text(f"/proc/{daemon_pid}/maps"))
        loaded = None if match is None else match[0]
    tool = None
    if shutil.which("fusermount3") is not None:
        with contextlib.suppress(NotCollectedError):
            tool = output_of(("fusermount3", "--version"), 2.0).decode(errors="replace").strip()
    return {"loaded": loaded, "fusermount3": tool}


def mount_lines(entries: Iterable[mountinfo.MountEntry]) -> bytes:
    """The lines of mountinfo for these mounts, as the kernel wrote them."""
    ids = {str(entry.mount_id).encode() for entry in entries}
    lines = Path("/proc/self/mountinfo").read_bytes().splitlines(keepends=True)
    return b"".join(line for line in lines if line.split(b" ", 1)[0] in ids)


def block_devices(entries: Iterable[mountinfo.MountEntry]) -> dict[str, Any]:
    """Attributes of the block devices of these mounts and of the devices below them, and requests that wait in
    FUSE."""
    devices: dict[str, Any] = {}
    waiting: dict[str, Any] = {}
    for entry in entries:
        if mountinfo.is_fuse(entry):
            path = f"/sys/fs/fuse/connections/{entry.minor}"
            waiting[entry.mountpoint] = {
                name: _text(f"{path}/{name}") for name in ("waiting", "max_background", "congestion_threshold")
            }
            continue
        name = f"{entry.major}:{entry.minor}"
        directory = Path("/sys/dev/block") / name
        if directory.is_dir():
            devices.setdefault(name, {"mountpoints": [], **_device(directory.resolve())})
            devices[name]["mountpoints"].append(entry.mountpoint)
        else:
            devices.setdefault(
                name, {"mountpoints": [entry.mountpoint], "name": f"{entry.fstype}, no block device"}
            )
    return {"devices": devices, "fuse": waiting}


def _device(directory: Path) -> dict[str, Any]:
    attributes = {name: text for name in _DEVICE_FILES if (text := _text(directory / name))}
    found: dict[str, Any] = {"name": directory.name, **attributes}
    if (directory / "partition").exists():
        found["disk"] = _device(directory.parent)
    slaves = directory / "slaves"
    below = sorted(slaves.iterdir()) if slaves.is_dir() else []
    if below:
        found["below"] = [_device(slave.resolve()) for slave in below]
    return found


def processes(pids: dict[str, int]) -> dict[str, Any]:
    """State, limits and threads of each process, with the kernel functions that its threads wait in."""
    if not pids:
        raise NotCollectedError("neither a daemon nor a keeper lives")
    return {role: _process(pid) for role, pid in pids.items()}


def _process(pid: int) -> dict[str, Any]:
    directory = Path(f"/proc/{pid}")
    threads = {}
    with contextlib.suppress(OSError):
        for task in sorted((directory / "task").iterdir(), key=lambda path: int(path.name)):
            state = re.search(r"^State:\s*(.*)$", _text(task / "status"), re.MULTILINE)
            threads[task.name] = {
                "name": _text(task / "comm"),
                "state": None if state is None else state[1],
                "waits_in": _text(task / "wchan"),
                "kernel_stack": _text(task / "stack").splitlines(),
            }
    descriptors = None
    with contextlib.suppress(OSError):
        descriptors = sum(1 for _ in (directory / "fd").iterdir())
    return {
        "pid": pid,
        "status": _text(directory / "status").splitlines(),
        "limits": _text(directory / "limits").splitlines(),
        "open_descriptors": descriptors,
        "threads": threads,
    }


def limits() -> dict[str, Any]:
    """Limits of this process, which a daemon started from here would get, and the kernel's."""
    names = ("RLIMIT_NOFILE", "RLIMIT_AS", "RLIMIT_MEMLOCK", "RLIMIT_NPROC", "RLIMIT_FSIZE", "RLIMIT_CORE")
    fuse = sorted(Path("/proc/sys/fs/fuse").iterdir()) if Path("/proc/sys/fs/fuse").is_dir() else []
    return {
        "process": {name: resource.getrlimit(getattr(resource, name)) for name in names},
        "kernel": {
            **{name: _text(f"/proc/sys/{name}") for name in _LIMITS},
            **{f"fs/fuse/{path.name}": _text(path) for path in fuse},
        },
    }


def units(names: Sequence[str], timeout_s: float) -> bytes:
    """State of systemd units. Raises NotCollectedError where systemd does not run."""
    require_systemd()
    return output_of(("systemctl", "show", f"--property={','.join(_UNIT_PROPERTIES)}", "--", *names), timeout_s)


def require_systemd() -> None:
    if not Path("/run/systemd/system").is_dir():
        raise NotCollectedError("systemd does not run on this machine")


def _text(path: str | Path) -> str:
    """A file of /proc or /sys; empty if this user cannot read it."""
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""
