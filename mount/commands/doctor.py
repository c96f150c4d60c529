"""`commitlogfs doctor`: check the machine, the installation and a pool's disks and mount."""

import json
from typing import Annotated, Any

import typer

from commitlogfs.console import settings
from commitlogfs.console.exit_status import ExitCode
from commitlogfs.console.formatting import count_of
from commitlogfs.console.output import Output
from commitlogfs.mount.config.errors import ConfigError
from commitlogfs.mount.config.model import list_configs, load_config
from commitlogfs.mount.doctor.diagnosis import Check, Level
from commitlogfs.mount.doctor.machine import check_mounts, check_sockets, examine_machine
from commitlogfs.mount.doctor.pool import examine_pool
from commitlogfs.mount.linux import mountinfo
from commitlogfs.mount.location.which_mount import configuration_file


def register(app: typer.Typer) -> None:
    app.command()(doctor)


def doctor(
    which: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|FILE|MOUNTPOINT", help="Default: every configuration there is.", show_default=False
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object with every check.")] = False,
) -> None:
    """Check kernel, FUSE, limits, disk directories, mountpoint and store root. Changes nothing.

    With a configuration, other mounts of this machine are left out.

    EXIT STATUS: 0 ok, or notes only; 1 a warning or a problem; 2 bad options or configuration.
    """
    which = settings.or_default(which)
    sections: dict[str, list[Check]] = {"machine": [*examine_machine(), *check_sockets()]}
    if which is not None:
        config = load_config(configuration_file(which))
        sections[config.name] = examine_pool(config)
    else:
        sections["machine"] += _examine_all(sections)
    checks = [check for section in sections.values() for check in section]
    worst = max(check.level for check in checks)
    if settings.wants_json(as_json):
        typer.echo(json.dumps(_as_json(sections, worst), indent=2))
    else:
        _show(sections, Output())
    if worst >= Level.WARNING:
        raise typer.Exit(ExitCode.FINDINGS)


def _examine_all(sections: dict[str, list[Check]]) -> list[Check]:
    """Add a section for every configuration. Returns the checks of the configurations' files and of other
    mounts."""
    mountpoints = []
    checks = []
    try:
        found = list_configs()
    except ConfigError as error:
        found = []
        checks.append(Check("configuration", Level.NOTE, str(error), "run `commitlogfs doctor` as root"))
    for path in dict.fromkeys(found):
        try:
            config = load_config(path)
        except ConfigError as error:
            checks.append(Check("configuration", Level.PROBLEM, str(error), "correct the file"))
        else:
            mountpoints.append(mountinfo.resolve_path(config.mountpoint))
            sections[config.name] = examine_pool(config)
    if not mountpoints and not checks:
        checks.append(Check("configuration", Level.NOTE, "no configuration to check", "give a FILE"))
    return [*checks, *check_mounts(mountpoints)]


def _show(sections: dict[str, list[Check]], output: Output) -> None:
    quiet = settings.current().quiet
    for name, checks in sections.items():
        shown = [check for check in checks if check.level >= (Level.WARNING if quiet else Level.OK)]
        if shown and not quiet:
            output.line(name, "bold")
        for check in shown:
            code = "" if check.level is Level.OK else check.name
            output.report(check.level.name.lower(), check.message, check.remedy, code=code)
    if not quiet:
        counted = _counted([check.level for section in sections.values() for check in section])
        output.line(counted or "All is well.", "bold" if counted else "green")


def _counted(levels: list[Level]) -> str:
    """ "2 problems and 1 warning", without those that there are none of."""
    counts = (levels.count(Level.PROBLEM), "problem"), (levels.count(Level.WARNING), "warning")
    return " and ".join(count_of(number, noun) for number, noun in counts if number)


def _as_json(sections: dict[str, list[Check]], worst: Level) -> dict[str, Any]:
    """Stable schema: {"level", "checks": [{"section", "name", "level", "message", "remedy"}]}."""
    return {
        "level": worst.name.lower(),
        "checks": [
            {
                "section": section,
                "name": check.name,
                "level": check.level.name.lower(),
                "message": check.message,
                "remedy": check.remedy,
            }
            for section, checks in sections.items()
            for check in checks
        ],
    }
