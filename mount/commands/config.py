"""`commitlogfs config`: check, show and import configuration files. Nothing here asks a daemon."""

import errno
import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from commitlogfs.console import settings
from commitlogfs.console.errors import RefusedError, UsageError
from commitlogfs.console.exit_status import ExitCode
from commitlogfs.console.units import format_duration_ms, format_size
from commitlogfs.mount.config.errors import ConfigError
from commitlogfs.mount.config.model import Config, config_path, default_config_path, load_config, parse_config
from commitlogfs.mount.config.retention import format_hours
from commitlogfs.mount.config.scrub import format_window
from commitlogfs.mount.config.whole_file import write_whole
from commitlogfs.store.retention import RetentionRules
from commitlogfs.store.scrub.schedule import ScrubRules
from commitlogfs.store.thresholds import RESUME_MARGIN, Thresholds

app = typer.Typer(name="config", help="Check, show and import configuration files.", no_args_is_help=True)


def register(application: typer.Typer) -> None:
    application.add_typer(app)


_Which = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME|FILE",
        help="A mount's NAME (/etc/commitlogfs/NAME.toml) or a file. Default: the only one there is.",
        show_default=False,
    ),
]


@app.command()
def check(which: _Which = None) -> None:
    """Check a configuration file, without reading the disks.

    EXIT STATUS: 0 the file is usable; 2 it is not: every problem is shown with its key and its remedy.
    """
    path = _path_of(which)
    config = load_config(path)
    disks = "1 disk" if len(config.disks) == 1 else f"{len(config.disks)} disks"
    settings.say(f"{path}: ok: {disks}, mountpoint {config.mountpoint}, retention {config.retention.mode.value}")


@app.command()
def show(
    which: _Which = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object; sizes in bytes, times in seconds, thresholds in percent."),
    ] = False,
) -> None:
    """Show the configuration that is in effect, with every default marked as such.

    EXIT STATUS: 0 shown; 2 the file is not usable.
    """
    path = _path_of(which)
    config = load_config(path)
    as_json = settings.wants_json(as_json)
    typer.echo(json.dumps(_as_json(config, path), indent=2) if as_json else _as_toml(config, path))


@app.command(name="import")
def import_(
    broker_conf: Annotated[Path, typer.Argument(metavar="BROKER_CONF", help="The broker's properties file.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write instead of standard output.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be written; write nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing output file.")] = False,
) -> None:
    """Make a configuration file from a RocketMQ broker.conf.

    Values are read as the broker reads them. A warning on standard error names each value that the broker ignores
    or changes.

    EXIT STATUS: 0 the result can be used as it is; 1 it has to be completed first, as the last warning says; 2 the
    broker.conf cannot be read, or the output cannot be written; 4 the output exists (see --force).
    """
    # Only this verb needs tomlkit; imported here, it takes no memory in the daemon.
    from commitlogfs.mount.config.import_broker import import_broker_conf

    imported = import_broker_conf(broker_conf)
    warnings = list(imported.warnings)
    complete = True
    try:
        parse_config(imported.toml_text, "imported", "to be completed")
    except ConfigError as error:
        complete = False
        warnings.append(str(error))
    for warning in warnings:
        typer.echo(f"commitlogfs: warning: {warning}", err=True)
    if output is None or dry_run:
        typer.echo(imported.toml_text, nl=False)
    if output is not None and dry_run:
        exists = os.path.lexists(output)
        outcome = "exists; replacing it needs --force" if exists and not force else "not written (dry run)"
        typer.echo(f"commitlogfs: {output}: {outcome}", err=True)
    elif output is not None:
        _write_file(output, imported.toml_text, replace=force)
        typer.echo(f"{output}: written", err=True)
    if not complete:
        raise typer.Exit(ExitCode.FINDINGS)


def _path_of(which: str | None) -> Path:
    which = settings.or_default(which)
    return default_config_path() if which is None else config_path(which)


# --- showing -----------------------------------------------------------------------------------------


def _threshold_values(thresholds: Thresholds) -> dict[str, int]:
    return {
        "clean": thresholds.clean,
        "force": thresholds.force,
        "full": thresholds.full,
        "resume": thresholds.resume,
        "min_free": thresholds.min_free_bytes,
    }


def _top_values(config: Config) -> dict[str, str | int | bool]:
    return {
        "mountpoint": config.mountpoint,
        "segment_size": config.segment_size,
        "placement": config.placement,
        "trigger": config.retention.trigger.value,
        "on_missing": config.on_missing,
        "passthrough": config.passthrough,
        "allow_other": config.allow_other,
        "refuse_reads_when_full": config.refuse_reads_when_full,
    }


def _retention_values(rules: RetentionRules) -> dict[str, str | int | float | bool | list[int] | None]:
    """Values of [retention], times in seconds; None for a key that has no effect in this mode."""
    return {
        "mode": rules.mode.value,
        "reserved": rules.reserved_s,
        "delete_when": sorted(rules.delete_when) or None,
        "force_after": rules.force_after_s,
        "grace": rules.grace_s,
        "punch": rules.punch,
        "batch": rules.batch,
        "interval": rules.interval_s,
    }


def _scrub_values(rules: ScrubRules) -> dict[str, str | float]:
    """Values of [scrub], `every` in seconds."""
    return {"every": rules.every_s, "rate": rules.rate, "window": format_window(rules.window)}


def _as_json(config: Config, path: Path) -> dict[str, Any]:
    """Stable schema: the keys of the file, plus `name`, `file` and `defaults` (key paths that the file does not
    set)."""
    disks = [
        {
            "path": disk.path,
            "readonly": disk.readonly,
            "weight": disk.weight,
            "thresholds": _threshold_values(disk.thresholds),
        }
        for disk in config.disks
    ]
    key_paths = [
        *_top_values(config),
        *(f"thresholds.{key}" for key in _threshold_values(config.thresholds)),
        *(f"retention.{key}" for key, value in _retention_values(config.retention).items() if value is not None),
        *(f"scrub.{key}" for key in _scrub_values(config.scrub)),
        *(f"disks[{index}].{key}" for index in range(len(disks)) for key in ("readonly", "weight")),
    ]
    return {
        "name": config.name,
        "file": str(path),
        **_top_values(config),
        "thresholds": _threshold_values(config.thresholds),
        "retention": _retention_values(config.retention),
        "scrub": _scrub_values(config.scrub),
        "disks": disks,
        "defaults": [key for key in key_paths if key not in config.given],
    }


def _as_toml(config: Config, path: Path) -> str:
    """TOML that loads again to the same configuration."""
    lines = [f"# {config.name}, from {_quoted(str(path))}", ""]
    for key, value in _top_values(config).items():
        lines.append(_line(key, value, "" if key in config.given else "default"))
    lines += ["", "[thresholds]", *_threshold_lines(config, "thresholds", config.thresholds, ())]
    lines += ["", "[retention]", *_retention_lines(config)]
    lines += ["", "[scrub]", *_scrub_lines(config)]
    for index, disk in enumerate(config.disks):
        prefix = f"disks[{index}]"
        lines += ["", "[[disks]]", _line("path", disk.path, "")]
        lines.append(_line("readonly", disk.readonly, "" if f"{prefix}.readonly" in config.given else "default"))
        if config.placement == "weighted":
            note = "" if f"{prefix}.weight" in config.given else "default"
            lines.append(f"weight = {disk.weight!r}{_note(note)}")
        own = f"{prefix}.thresholds"
        if any(key.startswith(f"{own}.") for key in config.given):
            lines += ["[disks.thresholds]", *_threshold_lines(config, own, disk.thresholds, ("thresholds",))]
    return "\n".join(lines)


def _threshold_lines(config: Config, own: str, thresholds: Thresholds, parents: tuple[str, ...]) -> list[str]:
    lines = []
    for key, value in _threshold_values(thresholds).items():
        if f"{own}.{key}" in config.given:
            note = ""
        elif any(f"{parent}.{key}" in config.given for parent in parents):
            note = "from [thresholds]"
        else:
            note = f"default: force - {RESUME_MARGIN}" if key == "resume" else "default"
        lines.append(_line(key, value, note))
    return lines


def _retention_lines(config: Config) -> list[str]:
    rules = config.retention
    values: dict[str, str | int | bool] = {"mode": rules.mode.value}
    if rules.reserved_s is not None:
        values["reserved"] = _duration(rules.reserved_s)
        values["delete_when"] = format_hours(rules.delete_when)
    values |= {
        "force_after": _duration(rules.force_after_s),
        "grace": _duration(rules.grace_s),
        "punch": rules.punch,
        "batch": rules.batch,
        "interval": _duration(rules.interval_s),
    }
    return [
        _line(key, value, "" if f"retention.{key}" in config.given else "default") for key, value in values.items()
    ]


def _scrub_lines(config: Config) -> list[str]:
    rules = config.scrub
    values = {
        "every": _duration(rules.every_s) if rules.every_s else "",
        "rate": format_size(rules.rate) if rules.rate else "",
        "window": format_window(rules.window),
    }
    return [_line(key, value, "" if f"scrub.{key}" in config.given else "default") for key, value in values.items()]


def _duration(duration_s: float) -> str:
    return format_duration_ms(round(duration_s * 1000))


def _line(key: str, value: str | int | bool, note: str) -> str:
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, int):
        text = f'"{format_size(value)}"' if key in ("segment_size", "min_free") else str(value)
    else:
        text = _quoted(value)
    return f"{key} = {text}{_note(note)}"


def _note(note: str) -> str:
    return f"  # {note}" if note else ""


def _quoted(text: str) -> str:
    """A TOML basic string; JSON's escapes are a subset of TOML's, apart from surrogate pairs."""
    return json.dumps(text, ensure_ascii=False)


# --- writing -----------------------------------------------------------------------------------------


def _write_file(path: Path, text: str, *, replace: bool) -> None:
    """Write `path` as a whole and durably, or not at all. Raises RefusedError if it exists, UsageError
    otherwise."""
    try:
        write_whole(path, text.encode(), replace=replace)
    except OSError as error:
        if error.errno == errno.EEXIST and os.path.lexists(path):
            raise RefusedError(f"{path}: exists; choose another --output, or add --force to replace it") from None
        reason = os.strerror(error.errno or 0)
        raise UsageError(f"{path}: cannot be written ({reason}); choose another --output") from None
