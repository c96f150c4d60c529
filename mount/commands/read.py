"""`commitlogfs read`: show the message, or the bytes, at a log offset."""

import json
import sys
from typing import Annotated

import typer

from commitlogfs.console import settings
from commitlogfs.console.errors import UsageError
from commitlogfs.console.exit_status import ExitCode
from commitlogfs.console.units import parse_size
from commitlogfs.mount.commands import options
from commitlogfs.mount.location.log_reader import open_log
from commitlogfs.mount.location.which_mount import answering_mountpoint
from commitlogfs.mount.status.locate import parse_target
from commitlogfs.mount.views.record_text import describe_record, is_intact, record_as_json


def register(app: typer.Typer) -> None:
    app.command()(read)


def read(
    offset_text: Annotated[
        str, typer.Option("--offset", metavar="N", help="Log offset: the physical offset of a message.")
    ],
    which: options.Mount = None,
    length: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Write this many bytes as they are: 4096, 64KiB, ...")
    ] = None,
    message: Annotated[
        bool, typer.Option("--message", help="Show the message that begins at N as text. The default.")
    ] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Write the message's record as it is in the log.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="The message as one JSON object; its body as stored, in base64.")
    ] = False,
) -> None:
    """Read the log at an offset, through the mount: one message, or plain bytes.

    A body that was compressed with zlib is shown uncompressed. Checksums are verified.

    EXIT STATUS: 0 read; 1 no message begins there, no segment holds the offset (bytes before a gap are written), or
    a checksum is wrong; 2 bad options; 3 the mount does not answer; 4 this user may not read the log.
    """
    offset = parse_target(offset_text)
    # --raw and --length override a --json before the verb, as they write bytes.
    as_json = as_json or (settings.current().json and not raw and length is None)
    if length is not None and (message or as_json):
        raise UsageError("read: --length writes plain bytes; leave out --message and --json")
    if raw and as_json:
        raise UsageError("read: --raw and --json exclude each other; give one of them")
    count = None if length is None else _parse_length(length)
    with open_log(answering_mountpoint(which)) as log:
        if count is not None:
            for data in log.read(offset, count):
                _write(data)
            return
        record, record_bytes = log.read_record(offset)
    if raw:
        _write(record_bytes)
    elif as_json:
        typer.echo(json.dumps(record_as_json(record), indent=2))
    else:
        typer.echo("\n".join(describe_record(record)))
    if not is_intact(record):
        raise typer.Exit(ExitCode.FINDINGS)


def _parse_length(text: str) -> int:
    try:
        count = parse_size(text)
    except ValueError as error:
        raise UsageError(f"--length: {error}") from None
    if count == 0:
        raise UsageError("--length: 0 is not supported; give at least 1")
    return count


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
