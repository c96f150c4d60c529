"""`commitlogfs restart`: replace the daemon; files that are open in the mount stay open."""

import json
from typing import Annotated, Any

import typer

from commitlogfs.console import settings
from commitlogfs.mount.commands import options
from commitlogfs.mount.location import control_socket
from commitlogfs.mount.location.replacement import replace_daemon, require_replaceable
from commitlogfs.mount.location.which_mount import find_target
from commitlogfs.mount.preflight.successor_check import check_configuration


def register(app: typer.Typer) -> None:
    app.command()(restart)


def restart(
    which: options.Mount = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the successor.", min=0)] = 30.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would happen; change nothing.")] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Hand over even if no successor can start; requests wait until the cause is corrected."
        ),
    ] = False,
    degraded: Annotated[
        bool,
        typer.Option(
            "--degraded", help='Continue without missing disks and segments, as with on_missing = "degraded".'
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The result as one JSON object.")] = False,
) -> None:
    """Replace the daemon by a new one, for an upgrade or a changed configuration. Nothing is unmounted.

    Requests wait meanwhile; mapped files remain readable and writable. The keeper, or systemd, starts the
    successor.

    EXIT STATUS: 0 the successor answers; 1 it does not within the timeout; 2 the configuration is not usable, and
    the daemon continues with the former one; 3 no daemon answers; 4 refused, and the daemon continues: the mount
    has no keeper and would end, the installed program does not start, the configuration changes what a running
    mount cannot change, or the next mount would be refused.
    """
    target = find_target(which, reads_file=not force)
    wants_json = settings.wants_json(as_json)
    if not force:
        check_configuration(target, degraded=degraded)
    if dry_run:
        require_replaceable(target, force=force)
        _show_plan(control_socket.ask(target.socket, "status"), wants_json)
        return
    done = replace_daemon(target, timeout, force=force)
    seconds = round(done.seconds, 3)
    if wants_json:
        document = {"name": target.name, "former_pid": done.former, "pid": done.pid, "seconds": seconds}
        typer.echo(json.dumps(document))
    else:
        settings.say(f"{target.name}: daemon {done.former} replaced by {done.pid} in {seconds:.2f} s")


def _show_plan(document: dict[str, Any], wants_json: bool) -> None:
    pid = document["daemon"]["pid"]
    if wants_json:
        typer.echo(json.dumps({"name": document["name"], "former_pid": pid, "pid": None, "seconds": None}))
        return
    typer.echo(
        f"{document['name']}: daemon {pid} would answer the requests that it has taken and end; another one would "
        f"take over {document['mountpoint']} and its {document['segments']['count']:,} segments. "
        "Nothing is unmounted. The installed program has not been loaded."
    )
