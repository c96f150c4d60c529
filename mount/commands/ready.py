"""`commitlogfs ready`: does the mount answer? For the broker's ExecStartPre."""

import time
from typing import Annotated

import typer

from commitlogfs.mount.errors import UnreachableError
from commitlogfs.mount.probe import probe_mount
from commitlogfs.mount.target import mountpoint_of

_PROBE_TIMEOUT_S = 5.0
_PAUSE_S = 0.2


def register(app: typer.Typer) -> None:
    app.command()(ready)


def ready(
    which: Annotated[str | None, typer.Argument(metavar="NAME|FILE|MOUNTPOINT", show_default=False)] = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for it.", min=0)] = 0.0,
) -> None:
    """Succeed once the mount answers a statfs and a lookup, tried from a child process.

    EXIT STATUS: 0 it answers; 3 it does not.
    """
    mountpoint = mountpoint_of(which)
    deadline = time.monotonic() + wait
    while True:
        result = probe_mount(mountpoint, _PROBE_TIMEOUT_S)
        if result.ok:
            return
        if time.monotonic() >= deadline:
            raise UnreachableError(f"{mountpoint}: not ready: {result.reason}")
        time.sleep(_PAUSE_S)
