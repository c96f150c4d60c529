"""`commitlogfs reopen-logs`: have keepers and daemons open their log files again, for logrotate."""

import os
import signal
from typing import Annotated

import typer

from commitlogfs.console import settings
from commitlogfs.console.errors import RefusedError, UnreachableError, UserError
from commitlogfs.console.exit_status import ExitCode
from commitlogfs.mount.location import control_socket, runtime_directory
from commitlogfs.mount.location.which_mount import find_target
from commitlogfs.store.files.locks import lock_holder


def register(app: typer.Typer) -> None:
    app.command("reopen-logs")(reopen_logs)


def reopen_logs(
    which: Annotated[
        str | None,
        typer.Argument(metavar="NAME|FILE|MOUNTPOINT", help="Default: all running mounts.", show_default=False),
    ] = None,
) -> None:
    """Have the keeper and the daemon of each mount open their log file again, after logrotate has renamed it.

    It sends SIGHUP to the keeper, or to the daemon if there is no keeper. Nothing else changes for the mount.

    EXIT STATUS: 0 done, or no mount is running; 1 a mount could not be reached.
    """
    which = settings.or_default(which)
    names = runtime_directory.list_names() if which is None else [find_target(which).name]
    failed = False
    for name in names:
        try:
            pid = _reopen_log_of(name)
        except UserError as error:
            typer.echo(f"commitlogfs: {error}", err=True)
            failed = True
        else:
            settings.say(f"{name}: process {pid} opens its log again")
    if failed:
        raise typer.Exit(ExitCode.FINDINGS)


def _reopen_log_of(name: str) -> int:
    """The pid of the process that was asked. Raises UserError."""
    path = runtime_directory.socket_path(name)
    if "version" not in control_socket.ask(path, "status")["daemon"]:
        raise RefusedError(
            f"{name}: its daemon has a version that unmounts at SIGHUP; "
            f"replace it with `commitlogfs restart {name}`"
        )
    for lock in (runtime_directory.keeper_lock_path(name), runtime_directory.lock_path(name)):
        pid = lock_holder(str(lock))
        if pid is None:
            continue
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if lock_holder(str(lock)) == pid:  # the pid was not reused before pidfd_open
                signal.pidfd_send_signal(pidfd, signal.SIGHUP)
                return pid
        finally:
            os.close(pidfd)
    raise UnreachableError(f"{name}: its process was not found (it may be restarting); try again")
