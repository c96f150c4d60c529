"""`commitlogfs retention preview`: show which segments would be removed next, why and when."""

import json
from typing import Any

import typer

from commitlogfs.console import settings
from commitlogfs.console.formatting import approximate_duration, approximate_size, count_of
from commitlogfs.console.output import Output
from commitlogfs.mount.location import control_socket
from commitlogfs.mount.location.which_mount import find_target
from commitlogfs.mount.views.status_text import describe_alert, describe_pressure, describe_retention

_SHOWN = 10


def preview(which: str | None, *, as_json: bool) -> None:
    """Ask the daemon and print. Raises UnreachableError."""
    socket = find_target(which).socket
    answer = control_socket.ask(socket, "retention")
    if settings.wants_json(as_json):
        typer.echo(json.dumps(answer, indent=2))
        return
    output = Output()
    output.paragraph(describe_pressure(control_socket.ask(socket, "status")))
    output.paragraph(describe_retention(answer["retention"]))
    for alert in answer["retention"]["alerts"]:
        output.paragraph(describe_alert(alert), "bold red")
    _show(answer["would_remove"], output)


def _show(removals: list[dict[str, Any]], output: Output) -> None:
    if not removals:
        output.paragraph("At present the filesystem would remove no segment.")
        return
    total = approximate_size(sum(removal["bytes"] for removal in removals))
    first = removals[0]
    when = "now" if first["in_seconds"] <= 0 else f"in {approximate_duration(first['in_seconds'])}"
    count = count_of(len(removals), "segment")
    output.paragraph(f"{count} of {total} in all would be removed, {when} ({first['reason']}):")
    for removal in removals[:_SHOWN]:
        output.line(f"  {removal['segment']}  {removal['disk']}  by rule {removal['rule']}")
    if len(removals) > _SHOWN:
        output.line(f"  and {len(removals) - _SHOWN:,} more, up to {removals[-1]['segment']}")
