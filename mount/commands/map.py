"""`commitlogfs map`: show the segments of each disk as a picture."""

import json
import shutil
import sys
from typing import Annotated, Any

import typer
from rich.text import Text

from commitlogfs.console import settings
from commitlogfs.console.formatting import count_of
from commitlogfs.console.output import Output
from commitlogfs.console.units import format_size
from commitlogfs.mount.commands import options
from commitlogfs.mount.location import control_socket
from commitlogfs.mount.location.which_mount import find_target
from commitlogfs.mount.views.segment_map import Picture, draw, symbols_for
from commitlogfs.mount.views.status_text import describe_offline
from commitlogfs.store.gaps import gaps_between
from commitlogfs.store.printable import printable

_DISK_STYLES = ("cyan", "green", "yellow", "magenta", "blue")
_GAPS_SHOWN = 5


def register(app: typer.Typer) -> None:
    app.command(name="map")(map_)


def map_(
    which: options.Mount = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Every segment with its disk, and the gaps, as one JSON object.")
    ] = False,
) -> None:
    """Show the segments of each disk as a picture: one row per disk, columns in the order of the log.

    A log with more segments than the terminal has columns is shown in shades. Gaps are marked below.

    EXIT STATUS: 0 shown; 3 no daemon answers.
    """
    answer = control_socket.ask(find_target(which).socket, "segments")
    size = answer["segment_size"]
    gaps = gaps_between([base for base, _ in answer["segments"]], size)
    # a daemon of a former version does not report them
    accepted = {(start, end) for start, end in answer.get("accepted_gaps", ())}
    if settings.wants_json(as_json):
        typer.echo(json.dumps({**answer, "gaps": gaps}))
        return
    output = Output()
    output.paragraph(_heading(answer, len(gaps) - len(accepted), len(accepted)), "bold")
    if answer["missing_disks"]:
        output.paragraph(f"DEGRADED: served without {', '.join(answer['missing_disks'])}.", "bold red")
    offline = answer.get("offline_disks", [])  # a daemon of a former version does not report them
    for disk in offline:
        output.paragraph(f"{describe_offline(disk)}.", "yellow")
    if not answer["segments"]:
        output.paragraph(f"The log is empty; its disks: {', '.join(disk['path'] for disk in answer['disks'])}.")
        return
    disks = [(disk["number"], printable(disk["path"])) for disk in answer["disks"]]
    width = shutil.get_terminal_size().columns
    _print(draw(disks, answer["segments"], size, width, symbols_for(sys.stdout.encoding)), output)
    for start, end in gaps[:_GAPS_SHOWN]:
        text = f"gap: {count_of((end - start) // size, 'segment')} missing from {start:020d} on, "
        if (start, end) in accepted:
            output.paragraph(f"{text}lost with a disk that was given up; consumers skip it silently", "yellow")
        else:
            remedy = "a disk that is offline may have the files" if offline else "bring back the files"
            output.paragraph(f"{text}which consumers skip silently; {remedy}", "red")
    if len(gaps) > _GAPS_SHOWN:
        output.paragraph(f"and {len(gaps) - _GAPS_SHOWN} more gaps; --json shows all", "red")


def _heading(answer: dict[str, Any], gaps: int, accepted: int) -> str:
    segments = answer["segments"]
    text = f"{answer['name']}: {count_of(len(segments), 'segment')} of {format_size(answer['segment_size'])} "
    text += f"on {count_of(len(answer['disks']), 'disk')}"
    if segments:
        text += f", log offsets {segments[0][0]:,} to {segments[-1][0] + answer['segment_size']:,}"
    text += f", {count_of(gaps, 'gap').upper()}" if gaps else ""
    return text + (f", {count_of(accepted, 'gap')} of disks that were given up" if accepted else "")


def _print(picture: Picture, output: Output) -> None:
    for index, row in enumerate(picture.rows):
        output.line(Text.assemble(row.label, (row.cells, _DISK_STYLES[index % len(_DISK_STYLES)])))
    if picture.gaps is not None:
        output.line(picture.gaps.label + picture.gaps.cells, "bold red")
    for line in (*picture.axis, *picture.legend):
        output.line(line, "dim")
