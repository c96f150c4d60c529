"""`commitlogfs disk`: show and change the disks of a running mount."""

import json
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from commitlogfs.console import settings
from commitlogfs.console.errors import RefusedError
from commitlogfs.console.exit_status import ExitCode
from commitlogfs.console.formatting import approximate_size, count_of
from commitlogfs.console.output import Output
from commitlogfs.fusefs.kernel.inodes import is_on_disk
from commitlogfs.mount.commands import options
from commitlogfs.mount.commands.disk_calls import (
    DiskArgument,
    ask,
    hand_over,
    number_or_path,
    plan_removal,
    require_configuration,
    served_disks,
    wait_until,
    wait_until_gone,
)
from commitlogfs.mount.commands.disk_drain import cancel, drain
from commitlogfs.mount.commands.disk_lost import give_up
from commitlogfs.mount.config import edit as config_edit
from commitlogfs.mount.config.edit import Edit
from commitlogfs.mount.config.model import Config, load_config, path_argument
from commitlogfs.mount.linux.holders import describe_file_users, find_file_users
from commitlogfs.mount.location import control_socket
from commitlogfs.mount.location.which_mount import Target, find_target
from commitlogfs.mount.preflight import configured_pool
from commitlogfs.mount.preflight.rehearsal import why_not_mountable
from commitlogfs.mount.preflight.successor_check import require_same_mount
from commitlogfs.mount.views.status_text import describe_disk

app = typer.Typer(name="disk", help="Show and change the disks of a running mount.", no_args_is_help=True)

_Timeout = Annotated[float, typer.Option(help="Seconds to wait for the next daemon.", min=0)]


@app.command(name="list")
def list_(which: options.Mount = None, as_json: options.Json = False) -> None:
    """Show the disks of the pool: number, state, segments, fill level, and what happens next.

    EXIT STATUS: 0 shown; 2 no such mount; 3 no daemon answers.
    """
    target = find_target(which)
    document = control_socket.ask(target.socket, "status")
    if settings.wants_json(as_json):
        shown = {key: document[key] for key in ("name", "pool", "members", "missing_disks", "disks")}
        typer.echo(json.dumps(shown, indent=2))
        return
    output = Output()
    for disk in document["disks"]:
        fill = "? %" if disk["used_percent"] is None else f"{disk['used_percent']:.1f} %"
        size = "" if disk["total_bytes"] is None else f" of {approximate_size(disk['total_bytes'])}"
        output.paragraph(
            f"{disk['number']}  {disk['path']}  {disk['state']}  {count_of(disk['segments'], 'segment')}  "
            f"{fill}{size}: {describe_disk(disk, document)}",
            indent=3,
        )
    for path in document["missing_disks"]:
        output.paragraph(f"?  {path}  missing", "bold red")
    for path in document["members"]["lagging"]:
        output.paragraph(f"{path} does not record the present list of members yet; it will when it can be written.")


@app.command()
def cordon(
    disk: DiskArgument,
    which: options.Mount = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Shown by `status` and `disk list`.")] = "",
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Make no new segments on a disk, from the next segment on. Its segments are served, and expire, as before.

    The disks record it, so it also holds after a restart.

    EXIT STATUS: 0 cordoned; 3 no daemon answers; 4 refused: no such disk, or no other disk takes new segments.
    """
    answer = ask(find_target(which), "disk-cordon", disk=number_or_path(disk), reason=reason, dry_run=dry_run)
    _show_change(answer, "cordoned", dry_run=dry_run, as_json=as_json)


@app.command()
def uncordon(
    disk: DiskArgument, which: options.Mount = None, dry_run: options.DryRun = False, as_json: options.Json = False
) -> None:
    """Let a disk take new segments again.

    EXIT STATUS: 0 it is not cordoned any longer; 3 no daemon answers; 4 refused: no such disk.
    """
    target, disk = find_target(which), number_or_path(disk)
    _require_configured(target, disk)
    answer = ask(target, "disk-uncordon", disk=disk, dry_run=dry_run)
    _show_change(answer, "uncordoned", dry_run=dry_run, as_json=as_json)


def _require_configured(target: Target, disk: str) -> None:
    """Raises RefusedError if an interrupted removal has taken the disk out of the configuration: the next daemon
    would not serve what is written there."""
    status = control_socket.ask(target.socket, "status")
    file = status["daemon"]["configuration"]
    for entry in status["disks"]:
        is_meant = disk in (str(entry["number"]), entry["path"])
        if is_meant and file is not None and all(d.path != entry["path"] for d in load_config(file).disks):
            raise RefusedError(
                f"{target.name}: {file} does not name {entry['path']} any more; complete `disk remove`, or put its "
                "entry back"
            )


def _show_change(answer: dict[str, Any], word: str, *, dry_run: bool, as_json: bool) -> None:
    if settings.wants_json(as_json):
        typer.echo(json.dumps(answer))
        return
    disk = f"disk {answer['number']} ({answer['path']})"
    if not answer["changed"]:
        settings.say(f"{answer['name']}: {disk} is {word} already")
    elif dry_run:
        typer.echo(f"{answer['name']}: {disk} would be {word}; segments there: {answer['segments']:,}")
    else:
        settings.say(f"{answer['name']}: {disk} is {word}; segments there: {answer['segments']:,}")
    for path in answer["lagging"]:
        typer.echo(f"{path}: has not recorded the change yet; it will when it can be written", err=True)


app.command()(drain)
app.command()(cancel)


@app.command(name="safe-to-remove")
def safe_to_remove(disk: DiskArgument, which: options.Mount = None, as_json: options.Json = False) -> None:
    """Tell whether a disk holds nothing of the pool any more; if it does, what, and which processes use the mount.

    EXIT STATUS: 0 it holds nothing: `disk remove` takes it out of the pool; 1 it holds segments or open files; 3 no
    daemon answers; 4 the pool has no such disk.
    """
    target = find_target(which)
    content = ask(target, "disk-content", disk=number_or_path(disk))
    is_safe = not content["segments"] and not content["other_files"]
    users = []
    if is_safe:
        text = f"{content['path']}: holds nothing of the pool; `commitlogfs disk remove` takes it out of the pool"
    else:
        mountpoint = control_socket.ask(target.socket, "status")["mountpoint"]
        users = find_file_users(mountpoint, partial(is_on_disk, disk=content["number"]))
        text = (
            f"{content['path']}: holds {count_of(content['segments'], 'segment')} and "
            f"{count_of(content['other_files'], 'other file')}{_describe_held(content)}; "
            f"open there: {describe_file_users(users)}"
        )
    if settings.wants_json(as_json):
        opened = [{"pid": user.pid, "command": user.comm, "files": user.files} for user in users]
        typer.echo(json.dumps({**content, "users": opened, "safe": is_safe}))
    else:
        typer.echo(f"{target.name}: {text}")
    if not is_safe:
        raise typer.Exit(ExitCode.FINDINGS)


def _describe_held(content: dict[str, Any]) -> str:
    held = content["held"]
    if not held:
        return ""
    return f" ({count_of(held, 'moved segment')}, until the broker is started anew or deletes them)"


@app.command()
def remove(
    disk: DiskArgument,
    which: options.Mount = None,
    lost: Annotated[
        bool, typer.Option("--lost", help="Give up a dead disk, with the segments that no other disk holds.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --lost: do not ask.")] = False,
    timeout: _Timeout = 30.0,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Take an empty disk out of the pool of a running mount. Nothing is unmounted.

    The configuration file loses its entry, another daemon takes the mount over (as with `restart`), and the disk
    loses its identity. Interrupted at any moment, the command can be repeated; `disk uncordon` takes it back until
    the configuration is changed.

    With --lost, a disk that will not come back is given up, also while nothing is mounted. What is lost is shown
    and has to be confirmed. The gaps of its segments are accepted losses from then on: they refuse no mount.

    EXIT STATUS: 0 removed; 1 it is still served after the timeout; 2 the configuration file cannot be edited; 3 no
    daemon answers; 4 refused, and nothing has changed: the disk holds something, is not lost, or no daemon could
    take over.
    """
    disk = number_or_path(disk)
    if lost:
        give_up(disk, which, timeout, yes=yes, dry_run=dry_run, as_json=settings.wants_json(as_json))
        return
    target = find_target(which)
    with ExitStack() as stack:
        status = control_socket.ask(target.socket, "status")
        file = require_configuration(target.name, status)
        stack.enter_context(config_edit.only_editor(file))
        present = load_config(file)
        require_same_mount(target.name, present, status, "the disk is not removed")
        if disk.startswith("/") and all(served["path"] != disk for served in status["disks"]):
            _forget_left(target, disk, plan_removal(present, file, disk), dry_run=dry_run, as_json=as_json)
            return
        plan = ask(target, "disk-leave", disk=disk, dry_run=True)
        path = plan["path"]
        planned = plan_removal(present, file, path)
        if dry_run:
            _show_removal(plan, file, as_json=as_json)
            return
        undo = stack.enter_context(ExitStack())
        undo.callback(_keep, target, path, planned)
        lagging = ask(target, "disk-leave", disk=disk)["lagging"]
        if lagging:
            raise RefusedError(
                f"{target.name}: {', '.join(lagging)}: cannot record the change, and may hang, so that the next "
                "daemon would wait for it; repair or detach it first"
            )
        _rehearse(target.name, present if planned is None else planned.config, planned, "removed")
        if planned is not None:
            config_edit.write(planned)
        pid = hand_over(target, timeout, undo)
        wait_until_gone(target, plan["number"], timeout)
        ask(target, "disk-forget", directory=path)
    if settings.wants_json(as_json):
        typer.echo(json.dumps({"name": target.name, "number": plan["number"], "path": path, "pid": pid}))
    else:
        settings.say(f"{target.name}: disk {plan['number']} ({path}) has left the pool; unmount it")


@app.command()
def add(
    directory: Annotated[
        str,
        typer.Argument(
            metavar="DIRECTORY", help="An empty directory on a filesystem of its own; it is made if it is absent."
        ),
    ],
    which: options.Mount = None,
    timeout: _Timeout = 30.0,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Add a disk to the pool of a running mount. The next segments use it. Nothing is unmounted.

    The configuration file gets an entry for it, and another daemon takes the mount over (as with `restart`).
    Interrupted at any moment, the command can be repeated.

    EXIT STATUS: 0 the disk is added; 1 it has not joined within the timeout; 2 the configuration file cannot be
    edited; 3 no daemon answers; 4 refused, and nothing has changed: the directory cannot become a disk, or no
    daemon could take the mount over.
    """
    target = find_target(which)
    path = path_argument(directory)
    wants_json = settings.wants_json(as_json)
    with ExitStack() as stack:
        status = control_socket.ask(target.socket, "status")
        file = require_configuration(target.name, status)
        stack.enter_context(config_edit.only_editor(file))
        present = load_config(file)
        require_same_mount(target.name, present, status, "the disk is not added")
        planned = _plan_edit(present, file, path)
        plan = ask(target, "disk-prepare", directory=path, dry_run=True)
        for warning in plan["warnings"]:
            typer.echo(f"commitlogfs: warning: {warning}", err=True)
        if dry_run:
            _show_plan(plan, file, wants_json)
            return
        undo = stack.enter_context(ExitStack())
        undo.callback(_forget, target, path, planned)
        ask(target, "disk-prepare", directory=path)
        _rehearse(target.name, present if planned is None else planned.config, planned, "added")
        if planned is not None:
            config_edit.write(planned)
        done = hand_over(target, timeout, undo)
        served = wait_until(
            target,
            lambda served: served.get(path, {"state": "joining"})["state"] != "joining",
            f"{path} has not joined",
            timeout,
        )
    if wants_json:
        document = {"name": target.name, "number": served[path]["number"], "path": path, "pid": done}
        typer.echo(json.dumps(document))
    else:
        settings.say(
            f"{target.name}: {path} is disk {served[path]['number']} of the pool; the next segments use it"
        )


def _forget(target: Target, path: str, planned: Edit | None) -> None:
    """Undo an addition, unless a daemon that was started meanwhile serves the disk already."""
    if path not in served_disks(target):
        _take_back(planned)
        ask(target, "disk-forget", directory=path)


def _forget_left(target: Target, path: str, planned: Edit | None, *, dry_run: bool, as_json: bool) -> None:
    """Complete a removal, or undo an addition, that was interrupted: the daemon does not serve the directory."""
    ask(target, "disk-forget", directory=path, dry_run=True)
    if not dry_run:
        if planned is not None:
            config_edit.write(planned)
        ask(target, "disk-forget", directory=path)
    if settings.wants_json(as_json):
        typer.echo(json.dumps({"name": target.name, "number": None, "path": path, "pid": None}))
    else:
        typer.echo(f"{target.name}: {path} {'has left the pool' if dry_run else 'has left the pool; unmount it'}")


def _keep(target: Target, path: str, planned: Edit | None) -> None:
    """Undo a removal, unless a daemon that was started meanwhile has dropped the disk already."""
    if path in served_disks(target):
        _take_back(planned)
        ask(target, "disk-stay", disk=path)


def _take_back(planned: Edit | None) -> None:
    if planned is not None and planned.file.read_bytes() == planned.text.encode():
        config_edit.take_back(planned)


def _plan_edit(present: Config, file: str, path: str) -> Edit | None:
    """None if the file names the disk already: an earlier command was interrupted, or an operator has added it."""
    if any(disk.path == path for disk in present.disks):
        return None
    return config_edit.add_disk(file, path)


def _rehearse(name: str, config: Config, planned: Edit | None, what: str) -> None:
    """Raises RefusedError if a daemon with the new configuration, not written yet, would not mount."""
    with tempfile.TemporaryDirectory() as directory:
        if planned is not None:
            copy = Path(directory) / f"{config.name}.toml"
            copy.write_text(planned.text, encoding="utf-8")
            config = replace(config, file=str(copy))
        reasons = why_not_mountable(config, configured_pool.on_missing(config))
    if reasons:
        raise RefusedError(
            f"{name}: the disk is not {what}: the next mount would be refused: {'; '.join(reasons)}; correct that"
        )


def _show_plan(plan: dict[str, Any], file: str, wants_json: bool) -> None:
    if wants_json:
        typer.echo(json.dumps(plan))
        return
    made = "would be made and " if plan["is_new"] else "would "
    typer.echo(
        f"{plan['name']}: {plan['path']} {made}become disk {plan['number']} of the pool ({plan['filesystem']}, "
        f"{approximate_size(plan['available_bytes'])} available); {file} would name it, and another daemon would "
        "take over. Nothing is unmounted."
    )


def _show_removal(plan: dict[str, Any], file: str, *, as_json: bool) -> None:
    if settings.wants_json(as_json):
        typer.echo(json.dumps(plan))
        return
    typer.echo(
        f"{plan['name']}: disk {plan['number']} ({plan['path']}) would leave the pool; {file} would not name it, "
        "and another daemon would take over. Nothing is unmounted."
    )
