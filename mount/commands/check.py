"""`commitlogfs check`: the start-up check without mounting."""

import json
from typing import Annotated, Any

import typer

from commitlogfs.mount import settings
from commitlogfs.mount.commands.births import specs_from_list
from commitlogfs.mount.commands.output import Output
from commitlogfs.mount.config import config_path, default_config_path, load_config
from commitlogfs.mount.errors import UsageError
from commitlogfs.mount.exit_codes import ExitCode
from commitlogfs.mount.inspection import Inspection, inspect_pool
from commitlogfs.mount.mounting import configured_segment_size, disk_specs, on_missing
from commitlogfs.mount.units import format_size
from commitlogfs.mount.words import count_of
from commitlogfs.store.findings import Finding, Severity
from commitlogfs.store.pool import OnMissing


def register(app: typer.Typer) -> None:
    app.command()(check)


def check(
    which: Annotated[
        str | None,
        typer.Argument(metavar="NAME|FILE", help="Default: the only configuration there is.", show_default=False),
    ] = None,
    disks: Annotated[
        str | None, typer.Option("--disks", metavar="DISK,DISK,...", help="Instead of a configuration.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object with every finding.")] = False,
) -> None:
    """Look at the disks as a mount would, and say everything that is found, with what to do about it.

    Changes nothing. Works while the pool is mounted, too.

    EXIT STATUS: 0 nothing worth a warning; 1 findings; 2 bad options or configuration; 4 not even a look is
    possible: no disk can be opened or none carries an identity.
    """
    if disks is not None:
        if which is not None:
            raise UsageError("check: give either a configuration (NAME|FILE) or --disks DISK,DISK,...")
        name, wanted = "check", OnMissing.REFUSE
        inspection = inspect_pool(specs_from_list(disks), None, wanted, name)
    else:
        which = settings.or_default(which)
        config = load_config(default_config_path() if which is None else config_path(which))
        name, wanted = config.name, on_missing(config)
        inspection = inspect_pool(disk_specs(config), configured_segment_size(config), wanted, name)
    if settings.wants_json(as_json):
        typer.echo(json.dumps(_as_json(inspection), indent=2))
    else:
        _show(inspection, name, wanted, Output())
    if inspection.worst >= Severity.WARNING:
        raise typer.Exit(ExitCode.FINDINGS)


def _show(inspection: Inspection, name: str, wanted: OnMissing, output: Output) -> None:
    if not settings.current().quiet:
        _show_pool(inspection, name, output)
    for finding in sorted(inspection.findings, key=lambda finding: -finding.severity):
        _show_finding(finding, output)
    if not settings.current().quiet:
        output.paragraph(_verdict(inspection, wanted), "" if inspection.mountable else "bold red")


def _show_pool(inspection: Inspection, name: str, output: Output) -> None:
    text = f"{name}: pool {inspection.pool_id}"
    if inspection.daemon is not None:
        text += f", served by daemon {inspection.daemon}"
    output.paragraph(text, "bold")
    text = f"{count_of(inspection.segments, 'segment')} of {format_size(inspection.segment_size)}"
    if inspection.first_offset is not None and inspection.last_offset is not None:
        text += f", log offsets {inspection.first_offset:,} to {inspection.last_offset + inspection.segment_size:,}"
    output.paragraph(text)
    width = max(len(disk.path) for disk in inspection.disks)
    for disk in inspection.disks:
        count = count_of(disk.segments, "segment")
        output.line(f"  disk {disk.number}  {disk.path:<{width}}  {disk.filesystem:<5}  {disk.state}  {count}")


def _show_finding(finding: Finding, output: Output) -> None:
    where = "/".join(part for part in (finding.disk, finding.file) if part)
    level = "refuses" if finding.severity >= Severity.REFUSES else finding.severity.name.lower()
    output.report(level, f"{where}: {finding.message}" if where else finding.message, finding.remedy)


def _verdict(inspection: Inspection, wanted: OnMissing) -> str:
    refusing = sum(finding.severity >= Severity.REFUSES for finding in inspection.findings)
    warnings = sum(finding.severity == Severity.WARNING for finding in inspection.findings)
    if not inspection.mountable:
        return f"A mount would be refused: {count_of(refusing, 'reason')}."
    if refusing:
        return f'A mount would serve what is there, because on_missing = "{wanted.value}".'
    if warnings:
        return f"A mount would succeed, with {count_of(warnings, 'warning')}."
    return "A mount would succeed."


def _as_json(inspection: Inspection) -> dict[str, Any]:
    """Stable schema; keys as in the status document."""
    return {
        "pool": inspection.pool_id,
        "daemon": None if inspection.daemon is None else {"pid": inspection.daemon},
        "segments": {
            "count": inspection.segments,
            "first_offset": inspection.first_offset,
            "last_offset": inspection.last_offset,
            "size": inspection.segment_size,
        },
        "disks": [
            {
                "id": disk.disk_id,
                "number": disk.number,
                "path": disk.path,
                "filesystem": disk.filesystem,
                "state": disk.state,
                "segments": disk.segments,
            }
            for disk in inspection.disks
        ],
        "missing_disks": list(inspection.missing),
        "mountable": inspection.mountable,
        "findings": [finding.as_json() for finding in inspection.findings],
    }
