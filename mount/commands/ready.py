"""`commitlogfs ready`: check that the mount answers, for the broker's ExecStartPre."""

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from commitlogfs.console.errors import RefusedError, UnreachableError
from commitlogfs.mount.commands import options
from commitlogfs.mount.linux.probe import probe_mount
from commitlogfs.mount.location.store_root import examine_store_root
from commitlogfs.mount.location.which_mount import mountpoint_of
from commitlogfs.store.disks.identity import RootAttributes

_PROBE_TIMEOUT_S = 5.0
_SHORTEST_PROBE_S = 1.0
_PAUSE_S = 0.2


def register(app: typer.Typer) -> None:
    app.command()(ready)


def ready(
    which: options.Mount = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the mount.", min=0)] = 0.0,
    any_store_root: Annotated[
        bool,
        typer.Option(
            "--any-store-root",
            help="Do not check the store root: the broker's storePathRootDir is another directory.",
        ),
    ] = False,
) -> None:
    """Succeed once the mount answers a statfs and a lookup of a child process.

    As root or as the owner of the mounted directory, also check that this owner can write the store root: a broker
    makes its lock file there.

    EXIT STATUS: 0 it answers; 3 it does not; 4 it answers, but the broker's user cannot write the store root.
    """
    mountpoint = mountpoint_of(which)
    deadline = time.monotonic() + wait
    while True:
        patience_s = max(deadline - time.monotonic(), _SHORTEST_PROBE_S)
        result = probe_mount(mountpoint, min(patience_s, _PROBE_TIMEOUT_S))
        if result.ok:
            break
        if time.monotonic() >= deadline:
            raise UnreachableError(
                f"{mountpoint}: not ready: {result.reason}; run `commitlogfs mount`, or see the daemon's log and "
                "`commitlogfs doctor`"
            )
        time.sleep(_PAUSE_S)
    if not any_store_root:
        _require_writable_store_root(mountpoint)


def _require_writable_store_root(mountpoint: str) -> None:
    """Raises RefusedError."""
    try:
        st = Path(mountpoint).stat()
        with os.scandir(mountpoint) as segments:
            has_segments = next(segments, None) is not None
    except OSError:  # only a user who may list the directory can be the broker's
        return
    owner = RootAttributes(st.st_mode & 0o777, st.st_uid, st.st_gid)
    root = examine_store_root(mountpoint, owner, has_segments=has_segments)
    if root.obstacle:
        raise RefusedError(
            f"store root {root.path}: {root.obstacle}; {root.remedy} "
            "(--any-store-root if the broker's storePathRootDir is another directory)"
        )
