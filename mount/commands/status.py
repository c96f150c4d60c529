"""`commitlogfs status`: show the state of one or all mounts."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import typer
from rich.text import Text

from commitlogfs.console import settings
from commitlogfs.console.errors import UserError
from commitlogfs.console.exit_status import ExitCode
from commitlogfs.console.formatting import approximate_size
from commitlogfs.console.output import Output
from commitlogfs.mount.linux import mountinfo
from commitlogfs.mount.location import control_client, runtime_directory
from commitlogfs.mount.location.which_mount import Target, find_target, running_targets
from commitlogfs.mount.views.rebalance_text import describe_rebalance
from commitlogfs.mount.views.scrub_text import describe_summary
from commitlogfs.mount.views.status_text import (
    describe_alert,
    describe_checksums,
    describe_degraded,
    describe_disk,
    describe_log,
    describe_mount,
    describe_offline,
    describe_passthrough,
    describe_pressure,
    describe_removed_lately,
    describe_retention,
    describe_store_root,
    shortened,
)
from commitlogfs.store.printable import printable

_REMOVALS = 1000
_HEADINGS = ("disk", "path", "state", "used", "free", "segments")
_MOUNT_HEADINGS = ("name", "mountpoint", "segments", "shown used", "remarks")
_RIGHT = frozenset({"used", "free", "segments"})
_USED_STYLES = (("full", "bold red"), ("force", "red"), ("clean", "yellow"))


def register(app: typer.Typer) -> None:
    app.command()(status)


def status(
    which: Annotated[
        str | None,
        typer.Argument(metavar="NAME|FILE|MOUNTPOINT", help="Default: every mount there is.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The status document, as documented.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit 1 with an alert, or without a disk.")] = False,
) -> None:
    """Show disks, thresholds, alerts, and what happens next.

    Without an argument: the only running mount, or one line for each of several. The daemon answers root and its
    own user; other users get the status file of the mount.

    EXIT STATUS: 0 shown; 1 with --check: there is an alert, or a disk is missing; 2 no such mount or configuration;
    3 no daemon answers (or one of several does not); 4 this user may not see it.
    """
    if settings.or_default(which) is None:
        targets = running_targets()
        if len(targets) > 1:
            _show_all(targets, as_json=settings.wants_json(as_json), check=check)
            return
    target = find_target(which, of_others=True)
    document = target.status()
    if settings.wants_json(as_json):
        typer.echo(json.dumps(document, indent=2))
    else:
        _show(document, _removals(target), Output())
    if check and _is_in_trouble(document):
        raise typer.Exit(ExitCode.FINDINGS)


def _removals(target: Target) -> list[dict[str, Any]]:
    """The latest removals by the journal; none for a mount of another user, or without a journal."""
    if target.others_mountpoint is not None:
        return []
    try:
        found: list[dict[str, Any]] = control_client.ask(
            target.socket, "decisions", kind="removed", limit=_REMOVALS
        )["decisions"]
    except UserError:
        return []
    return found


def _is_in_trouble(document: dict[str, Any]) -> bool:
    return bool(document["degraded"] or document["retention"]["alerts"])


def _show_all(targets: list[Target], *, as_json: bool, check: bool) -> None:
    """Show one line for each mount. Raises Exit if one of them does not answer, or fails the check."""
    with ThreadPoolExecutor(len(targets)) as threads:  # all at once: each may take the whole time
        documents = list(threads.map(_document_or_error, targets))
    if as_json:
        typer.echo(json.dumps({"schema": 1, "mounts": documents}, indent=2))
    else:
        rows = [_MOUNT_HEADINGS, *(tuple(map(printable, describe_mount(document))) for document in documents)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_MOUNT_HEADINGS))]
        output = Output()
        for index, row in enumerate(rows):
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            output.line("  ".join(cells).rstrip(), "" if index else "bold")
    if any("error" in document for document in documents):
        raise typer.Exit(ExitCode.UNREACHABLE)
    if check and any(map(_is_in_trouble, documents)):
        raise typer.Exit(ExitCode.FINDINGS)


def _document_or_error(target: Target) -> dict[str, Any]:
    try:
        return target.status()
    except UserError as error:
        mountpoint = target.others_mountpoint or runtime_directory.recorded_mountpoint(target.name)
        return {"name": target.name, "mountpoint": mountpoint, "error": str(error)}


def _show(document: dict[str, Any], removals: list[dict[str, Any]], output: Output) -> None:
    daemon = document["daemon"]
    # A daemon of an older release does not report its version.
    version = f" (version {daemon['version']})" if "version" in daemon else ""
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(daemon["since"]))
    output.paragraph(f"{document['name']} on {document['mountpoint']}", "bold")
    output.paragraph(f"Daemon {daemon['pid']}{version} since {since}, {describe_passthrough(daemon)}.")
    _show_absence(document, output)
    for alert in document["retention"]["alerts"]:
        output.report("ALERT", describe_alert(alert))
    if document["degraded"]:
        output.paragraph(describe_degraded(document), "bold red")
    for disk in document.get("offline_disks", ()):  # a daemon of a former version does not report them
        output.paragraph(describe_offline(disk), "bold")
    output.paragraph(describe_log(document), "red" if document["segments"]["gaps"] else "")
    output.line("")
    _show_disks(document, output)
    output.line("")
    if document.get("rebalance") is not None:  # a daemon of a former version does not report it
        output.paragraph(describe_rebalance(document["rebalance"]))
    remarks = (
        describe_checksums(document),
        describe_summary(document),
        describe_pressure(document),
        describe_removed_lately(removals, document["composed_at"]),
    )
    for text in filter(None, remarks):
        output.paragraph(text)
    output.paragraph(describe_retention(document["retention"]))
    output.paragraph(describe_store_root(document))
    for finding, left_out in shortened(document["findings"]):
        where = "/".join(part for part in (finding["disk"], finding["file"]) if part)
        text = f"{where}: {finding['message']}" if where else finding["message"]
        level = "refuses" if finding["severity"].startswith("refuses") else finding["severity"]
        output.report(level, text, finding["remedy"], code=finding["code"])
        if left_out:
            text = f"and {left_out:,} more [{finding['code']}]: `commitlogfs check {document['name']}`"
            output.report(level, f"{text} shows them all")


def _show_absence(document: dict[str, Any], output: Output) -> None:
    """Nothing if this process sees the mount, perhaps below another one."""
    ours = filter(mountinfo.is_commitlogfs, mountinfo.read_mounts())
    if all(entry.source != document["name"] for entry in ours):
        output.paragraph(
            f"{document['mountpoint']} is not mounted in this mount namespace: the daemon serves another one, "
            "such as that of a container, or files that were open at `umount -l`.",
            "bold red",
        )


def _show_disks(document: dict[str, Any], output: Output) -> None:
    """Show one line for each disk, followed by what happens next; on a narrow terminal on a line of its own."""
    rows = [_HEADINGS, *(_cells(disk) for disk in document["disks"])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    outlook = [printable(describe_disk(disk, document)) for disk in document["disks"]]
    room = None if output.width is None else output.width - sum(widths) - 2 * len(widths)
    behind = room is None or max(map(len, outlook)) <= room
    output.line(_aligned(_HEADINGS, widths) + ("  what happens next" if behind else ""), "bold")
    for disk, cells, text in zip(document["disks"], rows[1:], outlook, strict=True):
        line = Text(_aligned(cells, widths))
        style = _used_style(disk)
        if style:
            start = sum(widths[:3]) + 2 * 3
            line.stylize(style, start, start + widths[3])
        output.line(line.append(f"  {text}") if behind else line)
        if not behind:
            output.paragraph(" " * (widths[0] + 2) + text, "dim", indent=widths[0] + 2)


def _cells(disk: dict[str, Any]) -> tuple[str, ...]:
    used, free = disk["used_percent"], disk["available_bytes"]
    return (
        str(disk["number"]),
        printable(disk["path"]),
        disk["state"],
        "?" if used is None else f"{used:.1f} %",
        "?" if free is None else approximate_size(free),
        f"{disk['segments']:,}",
    )


def _aligned(cells: tuple[str, ...], widths: list[int]) -> str:
    return "  ".join(
        cell.rjust(width) if heading in _RIGHT else cell.ljust(width)
        for cell, width, heading in zip(cells, widths, _HEADINGS, strict=True)
    )


def _used_style(disk: dict[str, Any]) -> str:
    used = disk["used_percent"]
    if used is None:
        return "bold red"
    return next((style for name, style in _USED_STYLES if used >= disk["thresholds"][name]), "")
