"""`commitlogfs top`: the state of a mount, live in the terminal."""

from typing import Annotated

import typer

from commitlogfs.console import settings
from commitlogfs.mount.commands.options import Mount


def register(app: typer.Typer) -> None:
    app.command()(top)


def top(
    which: Mount = None,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.2, max=3600, help="Time between two frames.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one frame of text, and exit.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document for each interval, each on a line.")
    ] = False,
) -> None:
    """Show disks, rates, alerts and jobs of a mount while they change.

    Keys: q quits, p pauses, s sorts the disks by something else, ? shows all keys. Without a terminal it prints one
    frame, as with --once. Rates are those of the disks' devices, and are of the time between two frames: with
    --once, of the interval before it. If the daemon does not answer, the devices and the directories of the disks
    are shown, which are known from its last answer, or from the configuration.

    EXIT STATUS: 0 shown; 2 no such mount or configuration; 3 no daemon answers (with --once, or without a terminal;
    the frame is printed nevertheless); 4 this user may not see it; 130 interrupted.
    """
    # Imported here, because every command loads this module.
    from commitlogfs.mount.top import live, target
    from commitlogfs.mount.top import once as once_frames

    found, file = target.find(which)
    as_json = settings.wants_json(as_json)
    if as_json or once or not live.is_terminal():
        status = once_frames.run(found, file, interval, as_json=as_json, once=once)
    else:
        status = live.run(found, file, interval)
    if status:
        raise typer.Exit(status)
