"""`commitlogfs adopt`: take over an existing commitlog in place."""

from contextlib import ExitStack
from typing import Annotated

import typer

from commitlogfs.mount.commands.births import carry_out, chosen_disks, parse_owner
from commitlogfs.mount.errors import RefusedError
from commitlogfs.store import birth
from commitlogfs.store.errors import PoolError


def register(app: typer.Typer) -> None:
    app.command()(adopt)


def adopt(
    which: Annotated[str | None, typer.Argument(metavar="NAME|FILE", show_default=False)] = None,
    disks: Annotated[
        str | None, typer.Option("--disks", metavar="DISK,DISK,...", help="Instead of a configuration.")
    ] = None,
    segment_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Default: the size of the segments found.")
    ] = None,
    owner: Annotated[
        str | None,
        typer.Option(
            metavar="USER[:GROUP]",
            help="Who owns the mounted directory. Default: the owner of the folder with the oldest segment.",
        ),
    ] = None,
    mode: Annotated[str | None, typer.Option(help="Permission bits of the mounted directory.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, change nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Take over the folders of a RocketMQ store: a multi-path store, or a single commitlog folder with empty
    folders on further disks. No segment is touched; the folders only get an identity.

    The way back is to unmount: the folders stay a valid multi-path store.

    EXIT STATUS: 0 taken over; 2 bad options or configuration; 4 refused: a broker has the newest segment
    open, a segment is missing, doubled or of a wrong size, or something else lies in a folder.
    """
    specs, size, _ = chosen_disks(which, disks, segment_size)
    with ExitStack() as stack:
        try:
            plan = birth.plan_adopt(specs, size, parse_owner(owner, mode, None), stack)
            carry_out(plan, specs, stack, dry_run=dry_run, as_json=as_json, done="taken over")
        except PoolError as error:
            raise RefusedError(f"adopt: {error}") from error
