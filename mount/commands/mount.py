"""`commitlogfs mount`: mount a pool and serve it, with a keeper unless a service manager takes its place."""

import dataclasses
import logging
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from commitlogfs.console import interrupts, settings
from commitlogfs.console.errors import RefusedError, UsageError, UserError
from commitlogfs.mount.config.model import Config
from commitlogfs.mount.config.timing import timing_from
from commitlogfs.mount.daemon import daemonize
from commitlogfs.mount.daemon.arguments import configuration_of, make_pool_if_none
from commitlogfs.mount.keeper.options import DEFAULT_WATCHDOG_S, Options
from commitlogfs.mount.linux import descriptor_store, logs, mountinfo, priority
from commitlogfs.mount.location.runtime_directory import socket_path
from commitlogfs.mount.preflight.mountpoint import check_mountpoint

_LONGEST_WATCHDOG_S = 86400.0
_MOST_LINKS = 40


def register(app: typer.Typer) -> None:
    app.command()(mount)


def mount(
    which: Annotated[
        str | None,
        typer.Argument(metavar="NAME|FILE|MOUNTPOINT", help="With --init: the mountpoint.", show_default=False),
    ] = None,
    init: Annotated[
        str | None,
        typer.Option(
            "--init",
            metavar="DISK,DISK,...",
            help="First try: make a pool of these directories if there is none yet, and mount it.",
        ),
    ] = None,
    segment_size: Annotated[
        str | None,
        typer.Option(help="With --init: the broker's mappedFileSizeCommitLog. Default: 1GiB.", metavar="SIZE"),
    ] = None,
    create: Annotated[
        bool, typer.Option("--create", help="With --init: make directories that do not exist.")
    ] = False,
    background: Annotated[
        bool, typer.Option("--daemon", help="Serve in the background; return as soon as the mount answers.")
    ] = False,
    no_keeper: Annotated[
        bool,
        typer.Option(
            "--no-keeper",
            help="Run the daemon in this process, without a keeper, as the systemd unit does.",
        ),
    ] = False,
    watchdog: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Replace a daemon that does not answer for this time; 0: never."),
    ] = DEFAULT_WATCHDOG_S,
    no_standby: Annotated[
        bool,
        typer.Option(
            "--no-standby",
            help="Load no second daemon in advance: less memory, but a slower takeover.",
        ),
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also log every refused request.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Log warnings and errors only.")] = False,
    report_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> int:
    """Mount a pool and serve it until it is unmounted. In the foreground unless --daemon is given.

    Before it mounts, it checks the disks: identities, duplicates, gaps, other processes that use the directories.
    The bare mountpoint gets a guard, so that a broker that is started without the mount refuses to run.

    This process becomes the keeper of the mount: it starts the daemon, replaces one that dies or hangs, and passes
    signals on to it. Open files and mappings continue meanwhile.

    EXIT STATUS: 0 unmounted (or, with --daemon, mounted); 1 the daemon died repeatedly; 2 bad options or
    configuration; 4 refused.
    """
    report = daemonize.Report(report_fd)
    try:
        verbose, quiet = verbose or settings.current().verbose, quiet or settings.current().quiet
        if init is None:
            which = settings.or_default(which)
        _check_watchdog(watchdog)
        config = configuration_of(which, init, segment_size)
        level = logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO
        if background or not no_keeper:
            socket_path(config.name)  # refuses an unusable path before anything is made
            with logs.logging_to(level=level):
                check_mountpoint(config)
                if init is not None:
                    make_pool_if_none(config, create=create)
            serve = _daemon_command(which, init, segment_size, config, ["-v"] * verbose + ["-q"] * quiet)
            keeper = Options(
                config.name,
                mountinfo.resolve_path(config.mountpoint),
                tuple(serve),
                watchdog,
                level,
                report_fd,
                standby=not no_standby,
            )
            if not background:
                _become(keeper)
            pid = _start_in_background(None if no_keeper else keeper, serve, config.name)
            if not quiet:
                role = "daemon" if no_keeper else "keeper"
                typer.echo(f"{config.mountpoint}: mounted, {role} {pid}, log {daemonize.log_file(config.name)}")
            return 0
        with interrupts.deferred():
            from commitlogfs.mount.daemon import lifecycle  # a keeper never needs it, and loading it takes time

        timing = timing_from(os.environ)
        priority.raise_priority()
        priority.lock_memory()
        with logs.logging_to(level=level):
            if init is not None:
                make_pool_if_none(config, create=create)
            return int(lifecycle.run(config, descriptor_store.take_received(), report.ready, timing))
    except UserError as error:
        report.failed(error)
        raise


def _check_watchdog(seconds: float) -> None:
    """Raises UsageError. Below 1 s, a busy machine alone could make a probe of the mount fail."""
    if seconds != 0 and not 1 <= seconds <= _LONGEST_WATCHDOG_S:
        raise UsageError(
            f"--watchdog: {seconds:g} is out of range; give 0 (never), or 1 to {_LONGEST_WATCHDOG_S:g} seconds"
        )


def _become(keeper: Options) -> NoReturn:
    """Replace this process by the keeper. Raises RefusedError."""
    interrupts.block()  # until the keeper has its handlers
    try:
        os.execv(sys.executable, keeper.command_line())  # noqa: S606 - no shell is needed
    except OSError as error:
        interrupts.unblock()
        raise RefusedError(
            f"{keeper.name}: the keeper cannot be started ({sys.executable}: {error.strerror}); "
            "repair the installation"
        ) from error


def _start_in_background(keeper: Options | None, serve: list[str], name: str) -> int:
    if keeper is None:
        return daemonize.start(lambda report_fd: [*serve, "--report-fd", str(report_fd)], name)
    return daemonize.start(lambda report_fd: dataclasses.replace(keeper, report_fd=report_fd).command_line(), name)


def _daemon_command(
    which: str | None, init: str | None, segment_size: str | None, config: Config, flags: list[str]
) -> list[str]:
    """Command line of the daemon. It works from any directory: all paths in it are absolute."""
    assert which is not None
    command = daemon_program()
    if init is None:
        command.append(config.file if _is_path(which) and config.file is not None else which)
    else:
        command += [config.mountpoint, "--init", ",".join(disk.path for disk in config.disks)]
        command += ["--segment-size", segment_size] if segment_size is not None else []
    return command + flags


def daemon_program() -> list[str]:
    """First part of the daemon's command line: the installed command beside this one, if there is one.

    Its path contains the symbolic links through which this command was called. A keeper uses it as long as the
    mount lives, so an upgrade that changes a link (docs/installing.md) takes effect at the next `restart`.
    """
    called = Path(sys.argv[0]).absolute()
    directory = called.resolve().parent
    for _ in range(_MOST_LINKS):
        beside = called.with_name("commitlogfs-daemon")
        if beside.exists() and beside.resolve().parent == directory:
            return [str(beside)]
        if not called.is_symlink():
            break
        called = called.parent / called.readlink()
    return [sys.executable, "-P", "-m", "commitlogfs.mount.serve"]


def _is_path(which: str) -> bool:
    return "/" in which or which.endswith(".toml") or not which
