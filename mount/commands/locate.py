"""`commitlogfs locate`: show which segment and disk hold a log offset."""

import json
from typing import Annotated

import typer

from commitlogfs.console import settings
from commitlogfs.console.errors import AbsentError
from commitlogfs.console.exit_status import ExitCode
from commitlogfs.mount.commands import options
from commitlogfs.mount.location import control_socket
from commitlogfs.mount.location.which_mount import find_target
from commitlogfs.mount.status.locate import parse_target


def register(app: typer.Typer) -> None:
    app.command()(locate)


def locate(
    target: Annotated[
        str, typer.Argument(metavar="OFFSET|SEGMENT", help="A log offset, or a segment's 20-digit name.")
    ],
    which: options.Mount = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="One JSON object; `present` is false, with a `reason`, if no segment holds it."
        ),
    ] = False,
) -> None:
    """Show which segment holds a log offset (RocketMQ's physical offset), at which position, and on which disk.

    EXIT STATUS: 0 found; 1 no segment holds it, with the reason; 2 not an offset; 3 no daemon answers.
    """
    offset = parse_target(target)
    answer = control_socket.ask(find_target(which).socket, "locate", target=target)
    if settings.wants_json(as_json):
        typer.echo(json.dumps(answer, indent=2))
        if not answer["present"]:
            raise typer.Exit(ExitCode.FINDINGS)
        return
    if not answer["present"]:
        raise AbsentError(f"log offset {offset}: {answer['reason']}")
    state = f" ({answer['state']})" if answer["state"] else ""
    typer.echo(f"offset    {offset}")
    typer.echo(f"segment   {answer['segment']}{state}")
    typer.echo(f"position  {answer['position']}")
    typer.echo(f"disk      {answer['disk_number']} {answer['disk']}")
    typer.echo(f"path      {answer['path']}")
