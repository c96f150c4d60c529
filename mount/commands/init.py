"""`commitlogfs init`: make a new, empty pool."""

import os
from contextlib import ExitStack
from typing import Annotated

import typer

from commitlogfs.console.errors import RefusedError
from commitlogfs.mount.commands import options
from commitlogfs.mount.commands.births import carry_out, chosen_disks, parse_owner
from commitlogfs.mount.config.model import DEFAULT_SEGMENT_SIZE
from commitlogfs.mount.preflight.unmounted import kept_unmounted
from commitlogfs.store.disks.identity import NEW_ROOT_MODE, RootAttributes
from commitlogfs.store.errors import PoolError
from commitlogfs.store.pool import birth


def register(app: typer.Typer) -> None:
    app.command()(init)


def init(
    which: options.Configuration = None,
    disks: options.Disks = None,
    segment_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="The broker's mappedFileSizeCommitLog. Default: 1GiB.")
    ] = None,
    owner: Annotated[
        str | None,
        typer.Option(
            metavar="USER[:GROUP]",
            help="Owner of the mounted directory: the broker's user. Default group: this user's.",
        ),
    ] = None,
    mode: Annotated[
        str | None, typer.Option(help="Permission bits of the mounted directory. Default: 0750.")
    ] = None,
    dry_run: options.DryRun = False,
    as_json: options.PoolJson = False,
) -> None:
    """Make a new pool of empty directories, one for each disk. Their order is the order of the stripes.

    Each directory gets an identity (extended attributes). A later mount checks by it that the right disks are
    there. After an interruption, run the same command again.

    A pool that never had a segment is made anew, with other disks, another segment size or another owner. `destroy`
    ends any other.

    EXIT STATUS: 0 made; 2 bad options or configuration; 4 refused, and nothing is changed: a directory is not
    empty, is a disk of a pool that has had segments, is in use, is too small for a segment, or is on an unsuitable
    filesystem.
    """
    specs, size, config = chosen_disks(which, disks, segment_size)
    root = parse_owner(owner, mode, RootAttributes(NEW_ROOT_MODE, os.geteuid(), os.getegid()))
    assert root is not None
    with ExitStack() as stack:
        try:
            plan = birth.plan_init(specs, size or DEFAULT_SEGMENT_SIZE, root, stack)
            if config is not None and plan.replaced:
                stack.enter_context(kept_unmounted(config, "so its pool is in use"))
            carry_out(plan, specs, stack, dry_run=dry_run, as_json=as_json, done="made")
        except PoolError as error:
            raise RefusedError(f"init: {error}") from error
