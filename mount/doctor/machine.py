"""Checks of the machine and the installation: kernel, FUSE, time limits of requests, sockets, dead mounts."""

import errno
import os
import re
import shutil
import socket
import stat
from collections.abc import Collection
from pathlib import Path
from typing import Final

from commitlogfs.console.errors import UserError
from commitlogfs.mount.doctor.diagnosis import Check, Level, ok
from commitlogfs.mount.linux import mountinfo
from commitlogfs.mount.linux.fuse_device import is_fuse_device
from commitlogfs.mount.linux.probe import probe_mount
from commitlogfs.mount.linux.request_timeouts import describe_limits, read_request_timeouts
from commitlogfs.mount.location import runtime_directory

OLDEST_KERNEL: Final = (5, 6)
"""The first kernel with openat2(2)."""
_PROBE_TIMEOUT_S: Final = 3.0


def examine_machine() -> list[Check]:
    return [
        check_kernel(os.uname().release),
        check_fuse_device(Path("/dev/fuse")),
        *([] if os.geteuid() == 0 else [check_fusermount(*_find_fusermount())]),
        check_request_timeouts(read_request_timeouts()),
    ]


def check_kernel(release: str) -> Check:
    match = re.match(r"(\d+)\.(\d+)", release)
    if match is not None and (int(match[1]), int(match[2])) < OLDEST_KERNEL:
        return Check("kernel", Level.PROBLEM, f"kernel {release} is too old", "use Linux 5.6 or later")
    return ok("kernel", f"kernel {release}")


def check_fuse_device(path: Path) -> Check:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        remedies = {
            errno.ENOENT: "load the module (modprobe fuse), or give the container the device",
            errno.ENODEV: "load the module: modprobe fuse",
            errno.EACCES: f"let this user open {path} (its usual mode is 0666)",
            errno.EPERM: f"let the container open {path}",
        }
        message = f"{path} cannot be opened: {os.strerror(error.errno or 0)}"
        return Check("fuse-device", Level.PROBLEM, message, remedies.get(error.errno or 0, "check the device"))
    with os.fdopen(fd, "rb", buffering=0):
        if not is_fuse_device(fd):
            remedy = "load the module (modprobe fuse), or give the container the device"
            return Check("fuse-device", Level.PROBLEM, f"{path} is not the FUSE device", remedy)
    return ok("fuse-device", f"{path} can be opened")


def check_fusermount(tool: str | None, setuid: bool) -> Check:
    """Check fusermount3, which users other than root need."""
    if tool is None:
        message = "fusermount3 was not found, so only root can mount"
        return Check("fusermount", Level.PROBLEM, message, "install the package fuse3")
    if not setuid:
        message = f"{tool} has no set-user-id bit, so only root can mount"
        return Check("fusermount", Level.PROBLEM, message, f"chmod u+s {tool}, or reinstall fuse3")
    return ok("fusermount", f"{tool} is there")


def check_allow_other(*, enabled: bool, root: bool, fuse_conf: str) -> Check:
    if not enabled:
        message = "allow_other is off: only the daemon's user can use the mount"
        return ok("allow-other", message)
    if root or re.search(r"^\s*user_allow_other\s*$", fuse_conf, re.MULTILINE):
        return ok(
            "allow-other", "allow_other is on: other users, such as the broker's, may use the mount (by mode bits)"
        )
    return Check(
        "allow-other",
        Level.PROBLEM,
        "allow_other is on, but /etc/fuse.conf does not allow it for users",
        "add a line user_allow_other to /etc/fuse.conf, or set allow_other = false",
    )


def check_request_timeouts(values: dict[str, int | None]) -> Check:
    """Check the result of read_request_timeouts."""
    limits = describe_limits(values)
    if limits:
        zeros = " ".join(f"fs.fuse.{name}=0" for name, value in values.items() if value)
        remedy = f"sysctl -w {zeros}, and write it to /etc/sysctl.d"
        return Check(
            "request-timeout", Level.WARNING, f"{limits}: one request that hangs aborts the whole mount", remedy
        )
    return ok("request-timeout", "the kernel does not limit the time of FUSE requests")


def check_sockets() -> list[Check]:
    try:
        names = runtime_directory.list_names()
    except UserError as error:
        return [
            Check("runtime-directory", Level.PROBLEM, str(error), "make it a directory of this user, mode 0711")
        ]
    stale = [path for name in names if not _is_answered(path := runtime_directory.socket_path(name))]
    if not stale:
        return [
            ok(
                "sockets",
                f"{len(names)} control socket{'s' * (len(names) != 1)} in {runtime_directory.runtime_directory()}",
            )
        ]
    return [
        Check(
            "stale-socket",
            Level.NOTE,
            f"{path}: no daemon listens there",
            "nothing to do: the next mount replaces it; or remove it",
        )
        for path in stale
    ]


def check_mounts(skip: Collection[str]) -> list[Check]:
    """A check for each dead commitlogfs mount of the machine, except those at the mountpoints in `skip`."""
    entries = [entry for entry in mountinfo.read_mounts() if mountinfo.is_commitlogfs(entry)]
    checks = []
    for mountpoint in dict.fromkeys(entry.mountpoint for entry in entries):
        if mountpoint not in skip:
            probed = probe_mount(mountpoint, _PROBE_TIMEOUT_S)
            if not probed.ok:
                checks.append(dead_mount(mountpoint, probed.reason))
    return checks


def dead_mount(mountpoint: str, reason: str) -> Check:
    return Check(
        "dead-mount",
        Level.PROBLEM,
        f"{mountpoint}: the mount does not answer ({reason})",
        "see the daemon's log and `dmesg`; if no daemon comes back, stop the broker and run `commitlogfs mount`",
    )


def _is_answered(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # the socket's queue is full: its daemon is busy, not dead
    return True


def _find_fusermount() -> tuple[str | None, bool]:
    tool = shutil.which("fusermount3") or shutil.which("fusermount")
    return tool, tool is not None and bool(Path(tool).stat().st_mode & stat.S_ISUID)
