"""`commitlogfs adopt`: take over an existing commitlog in place."""

from contextlib import ExitStack
from typing import Annotated

import typer

from commitlogfs.console.errors import RefusedError
from commitlogfs.console.units import format_size
from commitlogfs.mount.commands import options
from commitlogfs.mount.commands.births import carry_out, chosen_disks, parse_owner
from commitlogfs.mount.config.model import checked_segment_size
from commitlogfs.store.errors import PoolError, SegmentSizeError
from commitlogfs.store.pool import birth


def register(app: typer.Typer) -> None:
    app.command()(adopt)


def adopt(
    which: options.Configuration = None,
    disks: options.Disks = None,
    segment_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Default: the size of the segments found.")
    ] = None,
    owner: Annotated[
        str | None,
        typer.Option(
            metavar="USER[:GROUP]",
            help="Owner of the mounted directory. Default: the owner of the directory with the oldest segment.",
        ),
    ] = None,
    mode: Annotated[str | None, typer.Option(help="Permission bits of the mounted directory.")] = None,
    dry_run: options.DryRun = False,
    as_json: options.PoolJson = False,
) -> None:
    """Make a pool of the directories of a RocketMQ store: those of a multi-path store, or a single commitlog
    directory with empty directories on further disks. Segments stay as they are; each directory only gets an
    identity.

    To go back, unmount: the directories are still a valid multi-path store.

    EXIT STATUS: 0 taken over; 2 bad options or configuration; 4 refused: a broker has the newest segment
    open, a segment is missing, is there twice or has a wrong size, or a directory holds another file.
    """
    specs, size, config = chosen_disks(which, disks, segment_size)
    key = None if config is None or segment_size is not None else f"{config.file}: segment_size"
    with ExitStack() as stack:
        try:
            plan = birth.plan_adopt(specs, size, parse_owner(owner, mode, None), stack)
            _require_usable(
                plan.segment_size, f"all {plan.segments} segments have {format_size(plan.segment_size)}"
            )
            carry_out(plan, specs, stack, dry_run=dry_run, as_json=as_json, done="taken over")
        except SegmentSizeError as error:
            raise _contradiction(error, key) from None
        except PoolError as error:
            raise RefusedError(f"adopt: {error}") from error


def _contradiction(error: SegmentSizeError, key: str | None) -> RefusedError:
    """The refusal of a wrong segment size. `key` is that of the configuration, or None for --segment-size."""
    number = f"all {error.total}" if error.number == error.total else f"{error.number} of {error.total}"
    found = format_size(error.found)
    text = f"{number} segments have {found}"
    _require_usable(error.found, text)
    remedy = f'write segment_size = "{found}"' if key else f"leave it out, or give --segment-size {found}"
    return RefusedError(f"adopt: {key or '--segment-size'} is {format_size(error.given)}, but {text}; {remedy}")


def _require_usable(size: int, text: str) -> None:
    """Raises RefusedError if no pool can have segments of this size; `text` names them."""
    try:
        checked_segment_size(size)
    except ValueError as error:
        raise RefusedError(f"adopt: {text}; {error}") from None
