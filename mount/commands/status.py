"""`commitlogfs status`: the state in words."""

import json
import time
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from commitlogfs.mount import control
from commitlogfs.mount.target import find_target
from commitlogfs.mount.words import (
    approximate_size,
    describe_degraded,
    describe_disk,
    describe_log,
    describe_pressure,
)


def register(app: typer.Typer) -> None:
    app.command()(status)


def status(
    which: Annotated[str | None, typer.Argument(metavar="[NAME|FILE|MOUNTPOINT]", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The documented stable schema.")] = False,
) -> None:
    """Show disks, thresholds, what happens next and when.

    EXIT STATUS: 0 shown; 3 no daemon answers.
    """
    document = control.ask(find_target(which).socket, "status")
    if as_json:
        typer.echo(json.dumps(document, indent=2))
    else:
        _show(document, Console(soft_wrap=True, highlight=False))


def _show(document: dict[str, Any], console: Console) -> None:
    daemon = document["daemon"]
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(daemon["since"]))
    console.print(
        f"[bold]{escape(document['name'])}[/] on {escape(document['mountpoint'])}: daemon {daemon['pid']} since "
        f"{since}, passthrough {daemon['passthrough']}"
    )
    if document["degraded"]:
        console.print(escape(describe_degraded(document)), style="bold red")
    console.print(escape(describe_log(document)))
    table = Table(box=None, pad_edge=False)
    for heading in ("disk", "path", "state", "used", "free", "segments", "what happens next"):
        table.add_column(heading, justify="right" if heading in ("used", "free", "segments") else "left")
    for disk in document["disks"]:
        used, free = disk["used_percent"], disk["available_bytes"]
        table.add_row(
            str(disk["number"]),
            escape(disk["path"]),
            disk["state"],
            "?" if used is None else f"{used:.0f} %",
            "?" if free is None else approximate_size(free),
            str(disk["segments"]),
            escape(describe_disk(disk, document)),
        )
    console.print(table)
    console.print(escape(describe_pressure(document)))
    for finding in document["findings"]:
        where = f"{finding['disk']}/{finding['file']}".rstrip("/") or "pool"
        line = f"{finding['severity']}: {where}: {finding['message']}: {finding['remedy']}"
        console.print(escape(line), style="yellow" if finding["severity"] != "note" else "dim")
