"""`commitlogfs bench`: measures this filesystem on this machine. A plug-in of the command line."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from commitlogfs.console import settings as cli_settings
from commitlogfs.console.errors import UsageError
from commitlogfs.console.units import parse_size

_MIB = 1 << 20


class Part(StrEnum):
    DATA = "data"
    BROKER = "broker"
    RECOVERY = "recovery"
    MOVES = "moves"
    SCRUB = "scrub"


class Filesystem(StrEnum):
    EXT4 = "ext4"
    XFS = "xfs"


def register(app: typer.Typer) -> None:
    app.command()(bench)


def bench(
    only: Annotated[Part | None, typer.Option(help="Run only this part.", show_default="all")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Interleaved rounds.", show_default="5")] = None,
    size: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Size of a segment in the data path part.", show_default="256MiB"),
    ] = None,
    disks: Annotated[
        int, typer.Option(min=1, max=4, help="Number of loop disks, or of directories with --directory.")
    ] = 3,
    fstype: Annotated[Filesystem, typer.Option(help="Filesystem of the loop disks.")] = Filesystem.EXT4,
    directory: Annotated[
        Path | None, typer.Option(help="Use this directory of a real disk instead of loop disks.")
    ] = None,
    messages: Annotated[
        int | None,
        typer.Option(min=100, help="Number of messages in one run of the broker.", show_default="100000"),
    ] = None,
    kills: Annotated[
        int | None, typer.Option(min=1, help="Number of kills of the daemon for each --load.", show_default="30")
    ] = None,
    load: Annotated[
        list[int] | None,
        typer.Option(
            min=0, help="Busy processes per processor while daemons are killed; may be repeated.", show_default="0"
        ),
    ] = None,
    cold: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Size of the messages that are moved, or scrubbed, while a broker takes others.",
            show_default="3GiB",
        ),
    ] = None,
    move_rate: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Bytes per second of a move with --rate.", show_default="20MiB"),
    ] = None,
    body: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Size of a message body.", show_default="4KiB")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write results.json, results.md and ratios.svg there.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Make a tiny run, whose figures are meaningless.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole result as one JSON document.")] = False,
) -> None:
    """Measure the mount, with and without passthrough, beside the bare disks and mergerfs, then a RocketMQ
    broker, then the time until the mount answers again when its daemon is killed, then what moves of segments
    between disks and scrubs cost a broker, and how fast a scrub reads.

    Needs root. Makes its own disks and pool and removes them again; no existing mount is touched, but caches
    are dropped on the whole machine.

    EXIT STATUS: 0 measured, even if a goal is missed; 1 a result was wrong or missing; 2 bad options;
    130 interrupted, and everything is removed.
    """
    # Imported here, because every command loads this module.
    from commitlogfs.bench import datapath, datapath_settings

    chosen = datapath_settings.QUICK if quick else {}
    given = {
        "rounds": rounds,
        "segment_bytes": _size("--size", size, _MIB),
        "messages": messages,
        "sync_messages": None if messages is None else max(1, messages // 3),
        "body_bytes": _size("--body", body, 1),
        "kills": kills,
        "cold_bytes": _size("--cold", cold, _MIB),
        "move_rate": _size("--move-rate", move_rate, _MIB),
        "loads": tuple(load) if load else None,
    }
    parts = tuple(datapath_settings.Part) if only is None else (datapath_settings.Part(only.value),)
    wanted = datapath_settings.Settings(
        parts=parts,
        disks=disks,
        fstype=fstype.value,
        directory=None if directory is None else directory.absolute(),
        **{**chosen, **{key: value for key, value in given.items() if value is not None}},
    )
    as_json = cli_settings.wants_json(as_json)
    status = datapath.run(wanted, output, as_json=as_json, quiet=cli_settings.current().quiet)
    if status:
        raise typer.Exit(status)


def _size(option: str, text: str | None, unit: int) -> int | None:
    if text is None:
        return None
    try:
        size = parse_size(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
    if size < unit or size % unit:
        raise UsageError(f"{option}: {text} is not a multiple of {unit:,} bytes")
    return size
