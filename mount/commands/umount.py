"""`commitlogfs umount`: unmount, unless the mount is in use."""

import time
from typing import Annotated

import typer

from commitlogfs.console import settings
from commitlogfs.console.errors import RefusedError, UnreachableError
from commitlogfs.mount.commands import options
from commitlogfs.mount.linux import mountinfo
from commitlogfs.mount.linux.holders import find_namespaces
from commitlogfs.mount.linux.unmount import not_visible, unmount
from commitlogfs.mount.location import guard
from commitlogfs.mount.location.guard import BareState
from commitlogfs.mount.location.name_lock import is_of_this_directory
from commitlogfs.mount.location.runtime_directory import lock_path
from commitlogfs.mount.location.which_mount import mountpoint_of
from commitlogfs.store.files.locks import lock_holder

_DAEMON_TIMEOUT_S = 30.0


def register(app: typer.Typer) -> None:
    app.command()(umount)


def umount(
    which: options.Mount = None,
    unguard: Annotated[
        bool, typer.Option("--unguard", help="Also remove the guard from the bare directory.")
    ] = False,
) -> None:
    """Unmount. A mount in use stays mounted, and the processes that use it are named. There is no lazy unmount.

    The bare directory keeps its guard: a broker that is started now refuses to run, and loses no data.

    EXIT STATUS: 0 unmounted; 3 nothing is mounted there; 4 refused, for example because the mount is in use.
    """
    mountpoint = mountpoint_of(which)
    entry = mountinfo.find_mount(mountpoint)
    _require_alone(mountpoint, entry)
    if entry is None or not mountinfo.is_commitlogfs(entry):
        if not unguard:
            raise UnreachableError(
                f"{mountpoint}: no commitlogfs is mounted here; `commitlogfs status` lists the mounts"
            )
    else:
        ours = is_of_this_directory(entry)
        unmount(mountpoint)
        if ours:
            _wait_for_daemon(entry.source, entry.device)
        settings.say(f"{mountpoint}: unmounted")
        if not unguard and _is_guarded(mountpoint):
            settings.say(
                f"{mountpoint}: the directory keeps its guard, so nothing in it can be changed (rm -rf fails); "
                f"`commitlogfs umount --unguard {mountpoint}` removes it"
            )
    if unguard and guard.lower_guard(mountpoint):
        settings.say(f"{mountpoint}: guard removed")


def _require_alone(mountpoint: str, visible: mountinfo.MountEntry | None) -> None:
    """Raises RefusedError if another mount lies on top of ours, or if ours is mounted elsewhere, too."""
    ours = [entry for entry in mountinfo.read_mounts() if mountinfo.is_commitlogfs(entry)]
    if visible is None or not mountinfo.is_commitlogfs(visible):
        if any(entry.mountpoint == mountpoint for entry in ours):
            raise not_visible(mountpoint)
        return
    others = sorted({entry.mountpoint for entry in ours if entry.device == visible.device} - {visible.mountpoint})
    if others:
        raise RefusedError(
            f"{mountpoint}: is also mounted at {', '.join(others)} (a bind mount); unmount that first"
        )


def _is_guarded(mountpoint: str) -> bool:
    """Whether the bare directory is guarded; False if this user cannot find out."""
    try:
        return guard.check_bare(mountpoint).state is BareState.GUARDED
    except (OSError, RefusedError):
        return False


def _wait_for_daemon(name: str, device: int) -> None:
    """Wait until the daemon has closed the disks, so that the next mount or a native broker can use them.

    Raises RefusedError after a while.
    """
    path = str(lock_path(name))  # not the socket, which a killed daemon leaves behind
    deadline = time.monotonic() + _DAEMON_TIMEOUT_S
    while lock_holder(path) is not None:
        if time.monotonic() > deadline:
            namespaces = find_namespaces(device)
            reason = "a disk may hang (`dmesg`)"
            if namespaces:
                found = ", ".join(f"{namespace} (pid {pid})" for namespace, pid in sorted(namespaces.items()))
                reason = f"other mount namespaces still have the mount: {found}; stop these containers"
            raise RefusedError(
                f"{name}: unmounted, but its daemon has not ended within {_DAEMON_TIMEOUT_S:g} s; {reason}"
            )
        time.sleep(0.02)
