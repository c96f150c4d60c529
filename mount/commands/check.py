"""`commitlogfs check`: make the start-up check without mounting."""

import contextlib
import json
from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer

from commitlogfs.console import settings
from commitlogfs.console.errors import UsageError, UserError
from commitlogfs.console.exit_status import ExitCode
from commitlogfs.console.formatting import count_of
from commitlogfs.console.output import Output
from commitlogfs.console.units import format_size
from commitlogfs.mount.commands import options
from commitlogfs.mount.commands.births import specs_from_list
from commitlogfs.mount.commands.check_repair import repair
from commitlogfs.mount.config.model import load_config
from commitlogfs.mount.linux import mountinfo
from commitlogfs.mount.linux.probe import probe_mount
from commitlogfs.mount.location.which_mount import configuration_file, find_target, running_targets
from commitlogfs.mount.preflight.configured_pool import configured_segment_size, disk_specs, on_missing
from commitlogfs.mount.preflight.inspection import (
    Inspection,
    inspect_pool,
    with_dead_mount,
    with_status,
    with_use_elsewhere,
)
from commitlogfs.mount.views.status_text import describe_alert
from commitlogfs.store.findings import Finding, Severity
from commitlogfs.store.pool.open import OnMissing

_PROBE_TIMEOUT_S: Final = 3.0


def register(app: typer.Typer) -> None:
    app.command()(check)


def check(
    which: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|FILE|MOUNTPOINT", help="Default: the only configuration there is.", show_default=False
        ),
    ] = None,
    disks: options.Disks = None,
    repairs: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="First do what a mount would do at its start: finish moves and renames, free removed segments.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --repair: print what would be done; change nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object with every finding.")] = False,
) -> None:
    """Make the checks of a mount, and show every finding with its remedy. Changes nothing without --repair.

    Works while the pool is mounted, too. It then also shows what the daemon reports: the state of each disk, and
    alerts.

    With --repair, it first finishes or undoes what a crash has left half done, as the next mount would: for disks
    that a native broker is to use. It is refused while the pool is mounted, and if a mount would be refused.

    EXIT STATUS: 0 no warning; 1 findings; 2 bad options or configuration; 4 the check is not possible: no disk can
    be opened, or none carries an identity; or --repair is refused.
    """
    _require_possible(disks, repairs=repairs, dry_run=dry_run)
    repaired = None
    if disks is not None:
        if which is not None:
            raise UsageError("check: give either a configuration (NAME|FILE) or --disks DISK,DISK,...")
        name, policy = "check", OnMissing.REFUSE
        inspection = inspect_pool(specs_from_list(disks), None, policy, name, is_thorough=True)
    else:
        which = settings.or_default(which)
        config = load_config(configuration_file(which))
        name, policy = config.name, on_missing(config)
        size = configured_segment_size(config)
        repaired = repair(config, dry_run=dry_run) if repairs else None
        inspection = inspect_pool(disk_specs(config), size, policy, name, is_thorough=True)
    mountpoint = None if disks is not None else config.mountpoint
    if inspection.daemon is not None:
        for document in _running(mountpoint):
            inspection = with_status(inspection, document)
        if mountpoint is not None:
            inspection = with_use_elsewhere(inspection, mountpoint)
    elif mountpoint is not None and _is_dead(mountpoint):
        inspection = with_dead_mount(inspection, mountpoint)
    if settings.wants_json(as_json):
        done = {} if repaired is None else {"repairs": repaired, "dry_run": dry_run}
        typer.echo(json.dumps({**_as_json(inspection), **done}, indent=2))
    else:
        _show_repairs(repaired, name, dry_run=dry_run)
        _show(inspection, name, policy, Output())
    if inspection.worst >= Severity.WARNING or inspection.is_in_trouble:
        raise typer.Exit(ExitCode.FINDINGS)


def _require_possible(disks: str | None, *, repairs: bool, dry_run: bool) -> None:
    """Raises UsageError for options that do not fit together."""
    if dry_run and not repairs:
        raise UsageError("check: --dry-run belongs to --repair; without that, nothing is changed")
    if repairs and disks is not None:
        raise UsageError("check: --repair needs a configuration, which shows whether the pool is mounted")


def _show_repairs(repaired: list[str] | None, name: str, *, dry_run: bool) -> None:
    """Nothing if none were asked for."""
    show = typer.echo if dry_run else settings.say
    for line in repaired or ():
        show(line)
    if repaired == []:
        settings.say(f"{name}: nothing to repair")


def _is_dead(mountpoint: str) -> bool:
    """Whether a mount of ours is there that does not answer; no daemon holds its disks."""
    entry = mountinfo.find_mount(mountpoint)
    is_ours = entry is not None and mountinfo.is_commitlogfs(entry)
    return is_ours and not probe_mount(mountpoint, _PROBE_TIMEOUT_S).ok


def _running(mountpoint: str | None) -> Iterator[dict[str, Any]]:
    """Status documents of the daemon at a mountpoint, or of all daemons of this user."""
    try:
        targets = running_targets() if mountpoint is None else [find_target(mountpoint, of_others=True)]
    except UserError:
        return
    for target in targets:
        with contextlib.suppress(UserError):
            yield target.status()


def _show(inspection: Inspection, name: str, policy: OnMissing, output: Output) -> None:
    if not settings.current().quiet:
        _show_pool(inspection, name, output)
    for finding in sorted(inspection.findings, key=lambda finding: -finding.severity):
        _show_finding(finding, output)
    for alert in inspection.alerts:
        output.report("problem", describe_alert(alert))
    if not settings.current().quiet:
        output.paragraph(_verdict(inspection, policy), "" if inspection.mountable else "bold red")


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
        if disk.last_error:
            output.paragraph(f"          {disk.last_error}", "red")


def _show_finding(finding: Finding, output: Output) -> None:
    level = "refuses" if finding.severity >= Severity.REFUSES else finding.severity.name.lower()
    output.report(level, finding.text, finding.remedy, code=finding.code.value)


def _verdict(inspection: Inspection, policy: OnMissing) -> str:
    refusing = sum(finding.severity >= Severity.REFUSES for finding in inspection.findings)
    always = sum(finding.severity is Severity.REFUSES_ALWAYS for finding in inspection.findings)
    warnings = sum(finding.severity == Severity.WARNING for finding in inspection.findings)
    if not inspection.mountable:
        reasons = always if policy is OnMissing.DEGRADED else refusing
        text = f"A mount would be refused: {count_of(reasons, 'reason')}."
        return text if always else f'{text} With on_missing = "degraded" it would serve the disks that are there.'
    if refusing:
        return f'A mount would serve the disks that are there, because on_missing = "{policy.value}".'
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
                "last_error": disk.last_error,
            }
            for disk in inspection.disks
        ],
        "missing_disks": list(inspection.missing),
        "mountable": inspection.mountable,
        "alerts": list(inspection.alerts),
        "findings": [finding.as_json() for finding in inspection.findings],
    }
