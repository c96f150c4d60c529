"""The arguments of `mount`, for the command and for the daemon that it starts: a configuration, or `--init`."""

import contextlib
import dataclasses
import os
from pathlib import Path

from commitlogfs.console.errors import RefusedError, UsageError
from commitlogfs.console.units import parse_size
from commitlogfs.mount.config.model import Config, load_config, quick_config
from commitlogfs.mount.location.which_mount import configuration_file
from commitlogfs.mount.preflight.configured_pool import disk_specs
from commitlogfs.mount.preflight.mountpoint import check_mountpoint
from commitlogfs.store.disks.identity import NEW_ROOT_MODE, RootAttributes
from commitlogfs.store.errors import PoolError
from commitlogfs.store.pool import birth


def configuration_of(which: str | None, init: str | None, segment_size: str | None) -> Config:
    """The configuration that the arguments of `mount` stand for. Raises ConfigError, UsageError."""
    if init is None:
        if which is None:
            raise UsageError("mount: no configuration given; give NAME or FILE, or --init DISK,DISK,... MOUNTPOINT")
        return load_config(configuration_file(which))
    if which is None:
        raise UsageError("mount --init: no mountpoint given; give it as the argument")
    mountpoint = str(Path(which).absolute())
    if segment_size is None:
        return quick_config(name_from(mountpoint), mountpoint, init)
    try:
        size = parse_size(segment_size)
    except ValueError as error:
        raise UsageError(f"--segment-size: {error}") from None
    config = quick_config(name_from(mountpoint), mountpoint, init, size)
    return dataclasses.replace(config, given=frozenset({"segment_size"}))


def name_from(mountpoint: str) -> str:
    """The name of a mount without a configuration file, made from its mountpoint."""
    name = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in mountpoint.strip("/"))
    return name.lstrip(".-")[-64:].lstrip(".-") or "commitlog"


def make_pool_if_none(config: Config, *, create: bool = False) -> None:
    """Make the pool of `mount --init`. Directories that have an identity are mounted as they are.

    The mountpoint is checked only if no disk has an identity. Then nothing is mounted yet, so a successor never
    touches its mountpoint. `create`: make directories that do not exist. Raises RefusedError.
    """
    specs = disk_specs(config)
    try:
        if not birth.is_born(specs):
            check_mountpoint(config)
            root = RootAttributes(NEW_ROOT_MODE, os.geteuid(), os.getegid())
            with contextlib.ExitStack() as stack:
                plan = birth.plan_init(specs, config.segment_size, root, stack)
                if plan.created and not create:
                    path = plan.created[0]
                    raise PoolError(f"{path}: does not exist; mount its disk, or have it made with --create")
                birth.execute(plan, specs, stack)
    except PoolError as error:
        raise RefusedError(f"{config.name}: {error}") from error
