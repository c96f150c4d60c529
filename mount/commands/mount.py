"""`commitlogfs mount`: serve a pool."""

import contextlib
import dataclasses
import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from commitlogfs.mount import daemon, daemonize, logs, settings
from commitlogfs.mount.config import Config, config_path, load_config, quick_config
from commitlogfs.mount.errors import RefusedError, UsageError, UserError
from commitlogfs.mount.mounting import disk_specs
from commitlogfs.mount.units import parse_size
from commitlogfs.store import birth
from commitlogfs.store.errors import PoolError
from commitlogfs.store.identity import RootAttributes


def register(app: typer.Typer) -> None:
    app.command()(mount)


def mount(
    which: Annotated[
        str | None,
        typer.Argument(metavar="NAME|FILE", help="With --init: the mountpoint.", show_default=False),
    ] = None,
    init: Annotated[
        str | None,
        typer.Option(
            "--init",
            metavar="DISK,DISK,...",
            help="For a first try: make a pool of these folders if they are none yet, and mount it.",
        ),
    ] = None,
    segment_size: Annotated[
        str | None,
        typer.Option(help="With --init: the broker's mappedFileSizeCommitLog. Default: 1GiB.", metavar="SIZE"),
    ] = None,
    background: Annotated[
        bool, typer.Option("--daemon", help="Return as soon as the mount answers; serve in the background.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log every refused request too.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Log warnings and errors only.")] = False,
    report_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Mount a pool and serve it until it is unmounted. In the foreground unless --daemon is given.

    Everything is checked before anything is mounted: disks, identity, duplicates, gaps, other users of the
    folders. The bare mountpoint gets a guard, so that a broker started without the mount refuses to run.

    EXIT STATUS: 0 unmounted (or, with --daemon, serving); 2 bad options or configuration; 4 refused.
    """
    report = daemonize.Report(report_fd)
    try:
        verbose, quiet = verbose or settings.current().verbose, quiet or settings.current().quiet
        if init is None:
            which = settings.or_default(which)
        config = _configuration(which, init, segment_size)
        if background:
            daemon.check_mountpoint(config)
            if init is not None:
                _make_pool_if_none(config)
            assert which is not None  # noqa: S101 - narrowing: _configuration demands it
            arguments = ["mount", str(Path(which).absolute()) if _is_path(which) else which]
            if init is not None:
                # The daemon works in /, so it gets absolute paths.
                arguments += ["--init", ",".join(disk.path for disk in config.disks)]
                arguments += ["--segment-size", segment_size] if segment_size is not None else []
            arguments += ["-v"] * verbose + ["-q"] * quiet
            pid = daemonize.start(arguments, config.name)
            if not quiet:
                typer.echo(f"{config.mountpoint}: mounted, daemon {pid}, log {daemonize.log_file(config.name)}")
            return
        level = logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO
        with logs.logging_to(level=level):
            if init is not None:
                daemon.check_mountpoint(config)
                _make_pool_if_none(config)
            daemon.run(config, report.ready)
    except UserError as error:
        report.failed(error)
        raise


def _configuration(which: str | None, init: str | None, segment_size: str | None) -> Config:
    if init is None:
        if which is None:
            raise UsageError("mount: which configuration? Give NAME or FILE, or --init DISK,DISK,... MOUNTPOINT")
        return load_config(config_path(which))
    if which is None:
        raise UsageError("mount --init: where? Give the mountpoint as the argument")
    mountpoint = str(Path(which).absolute())
    if segment_size is None:
        return quick_config(_name_from(mountpoint), mountpoint, init)
    try:
        size = parse_size(segment_size)
    except ValueError as error:
        raise UsageError(f"--segment-size: {error}") from None
    config = quick_config(_name_from(mountpoint), mountpoint, init, size)
    return dataclasses.replace(config, given=frozenset({"segment_size"}))


def _name_from(mountpoint: str) -> str:
    """A mount without a configuration file is called after its mountpoint."""
    name = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in mountpoint.strip("/"))
    return name.lstrip(".-")[-64:].lstrip(".-") or "commitlog"


def _is_path(which: str) -> bool:
    return "/" in which or which.endswith(".toml") or not which


def _make_pool_if_none(config: Config) -> None:
    """The first try's shortcut: folders that carry an identity are mounted as they are."""
    specs = disk_specs(config)
    try:
        if not birth.is_born(specs):
            root = RootAttributes(0o755, os.geteuid(), os.getegid())
            with contextlib.ExitStack() as stack:
                plan = birth.plan_init(specs, config.segment_size, root, stack)
                birth.execute(plan, specs, stack)
    except PoolError as error:
        raise RefusedError(f"{config.name}: {error}") from error
