"""`commitlogfs debug`: one archive for a bug report."""

import json
import time
from pathlib import Path
from typing import Annotated, Final

import typer

from commitlogfs.console import settings
from commitlogfs.console.errors import UsageError
from commitlogfs.console.formatting import count_of
from commitlogfs.console.output import Output, waiting_line
from commitlogfs.console.units import format_size
from commitlogfs.mount.commands import options
from commitlogfs.mount.debugging.bug_report import (
    DIRECTORY,
    MANIFEST,
    BugReport,
    manifest,
    pack,
    require_new,
    write_new,
)
from commitlogfs.mount.debugging.subject import Subject, find_subject

_TIMEOUT_S: Final = 20.0
_LEAST_TIMEOUT_S: Final = 1.0


def register(app: typer.Typer) -> None:
    app.command()(debug)


def debug(
    which: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|FILE|MOUNTPOINT",
            help="Default: the only mount there is; without any, the machine alone.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The archive. Default: commitlogfs-debug-NAME-TIME.tar.gz in this directory.",
            show_default=False,
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Longest time for each piece, such as `check` of a large pool.")
    ] = _TIMEOUT_S,
    dry_run: options.DryRun = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="The manifest of the archive as one JSON object.")
    ] = False,
) -> None:
    """Collect what a bug report needs in one archive, which only this user can read. Changes nothing else.

    It works with a daemon or a disk that hangs, and with a dead daemon: the manifest says what could not be
    collected. It never holds content or topics of messages.

    EXIT STATUS: 0 the archive was made, also if pieces are missing; 2 no such mount; 4 the file exists already or
    cannot be written.
    """
    if timeout < _LEAST_TIMEOUT_S:
        raise UsageError(f"debug: --timeout must be at least {_LEAST_TIMEOUT_S:g} seconds")
    subject = find_subject(settings.or_default(which))
    made_at = time.time()
    target = _default_output(subject, made_at) if output is None else output.absolute()
    require_new(target)
    report = BugReport(subject, timeout)
    if dry_run:
        _show_plan(report, target)
        return
    with waiting_line("collecting"):
        collected = report.collect()
    contents = manifest(collected, None if subject is None else subject.name, made_at)
    write_new(target, packed := pack(collected, contents, made_at))
    if settings.wants_json(as_json):
        typer.echo(json.dumps({"archive": str(target), **contents}, indent=2))
        return
    shown = Output()
    for missing in contents["not_collected"]:
        shown.report("note", f"{missing['file']}: not collected: {missing['reason']}")
    settings.say(f"{target}: {count_of(len(contents['inside']), 'piece')}, {format_size(len(packed))}")
    settings.say(f"Read it before you send it on: tar -xzf {target}")


def _default_output(subject: Subject | None, made_at: float) -> Path:
    name = "machine" if subject is None else subject.name
    return Path.cwd() / f"commitlogfs-debug-{name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(made_at))}.tar.gz"


def _show_plan(report: BugReport, target: Path) -> None:
    settings.say(f"would make {target} with")
    for file, holds in sorted([(MANIFEST, "what is inside"), *((p.file, p.holds) for p in report.pieces())]):
        typer.echo(f"  {DIRECTORY}/{file:<20}{holds}")
