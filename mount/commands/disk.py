"""`commitlogfs disk`: show and change the disks of a running mount."""

import json
from contextlib import ExitStack
from typing import Annotated, Any

import typer

from commitlogfs.console import settings
from commitlogfs.console.errors import RefusedError, UsageError
from commitlogfs.console.exit_status import ExitCode
from commitlogfs.console.formatting import approximate_size, count_of
from commitlogfs.console.output import Output
from commitlogfs.mount.commands import options
from commitlogfs.mount.commands.disk_add import add
from commitlogfs.mount.commands.disk_calls import (
    DiskArgument,
    ask,
    number_or_path,
    served_disks,
    show_lagging,
    users_as_json,
    users_of_disk,
)
from commitlogfs.mount.commands.disk_drain import cancel, drain
from commitlogfs.mount.commands.disk_offline import offline, online
from commitlogfs.mount.commands.disk_remove import remove
from commitlogfs.mount.commands.disk_replace import replace
from commitlogfs.mount.config import edit as config_edit
from commitlogfs.mount.config.model import load_config
from commitlogfs.mount.linux.holders import describe_file_users
from commitlogfs.mount.location import control_socket
from commitlogfs.mount.location.which_mount import Target, find_target
from commitlogfs.mount.status.disk_content import (
    describe_arriving,
    describe_foreign,
    describe_held,
    describe_left_behind,
    describe_unwritable,
)
from commitlogfs.mount.views.status_text import describe_disk, describe_offline
from commitlogfs.store.disks.membership import LONGEST_REASON

app = typer.Typer(name="disk", help="Show and change the disks of a running mount.", no_args_is_help=True)


def register(application: typer.Typer) -> None:
    application.add_typer(app)


@app.command(name="list")
def list_(which: options.Mount = None, as_json: options.Json = False) -> None:
    """Show the disks of the pool: number, state, segments, fill level, and what happens next.

    EXIT STATUS: 0 shown; 2 no such mount; 3 no daemon answers; 4 refused: the mount is another user's.
    """
    target = find_target(which)
    document = control_socket.ask(target.socket, "status")
    if settings.wants_json(as_json):
        keys = ("name", "pool", "members", "missing_disks", "offline_disks", "disks")
        shown = {key: document[key] for key in keys if key in document}  # a daemon of a former version lacks one
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
    for disk in document.get("offline_disks", ()):
        output.paragraph(describe_offline(disk))
    for path in document.get("members", {}).get("lagging", ()):
        output.paragraph(f"{path} does not record the present list of members yet; it will when it can be written.")


@app.command()
def cordon(
    disk: DiskArgument,
    which: options.Mount = None,
    reason: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Shown by `status` and `disk list`. Repeated without it, the command keeps the reason; "
            "an empty text removes it.",
            show_default=False,
        ),
    ] = None,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Make no new segments on a disk, from the next segment on. Its segments are served, and expire, as before.

    The disks record it, so it also holds after a restart.

    EXIT STATUS: 0 cordoned; 2 no such mount, or the reason is too long; 3 no daemon answers; 4 refused, and nothing
    has changed: no such disk, it leaves the pool, or no other disk takes new segments.
    """
    target, disk = find_target(which), number_or_path(disk)
    if reason is None:
        reason = _recorded_reason(target, disk)
    elif len(reason) > LONGEST_REASON or not reason.isprintable():
        raise UsageError(f"--reason: give at most {LONGEST_REASON} printable characters")
    answer = ask(target, "disk-cordon", disk=disk, reason=reason, dry_run=dry_run)
    _show_change(answer, "cordoned", dry_run=dry_run, as_json=as_json)


@app.command()
def uncordon(
    disk: DiskArgument, which: options.Mount = None, dry_run: options.DryRun = False, as_json: options.Json = False
) -> None:
    """Let a disk take new segments again. It stays in the pool if an interrupted `disk remove` has left it leaving.

    EXIT STATUS: 0 it is not cordoned any longer; 2 no such mount, or the configuration file cannot be used; 3 no
    daemon answers; 4 refused, and nothing has changed: no such disk, it drains, the file does not name it, or
    another `disk` command is at work.
    """
    target, disk = find_target(which), number_or_path(disk)
    with ExitStack() as stack:
        _keep_others_from(stack, target, disk)
        answer = ask(target, "disk-uncordon", disk=disk, stays=True, dry_run=dry_run)
    _show_change(answer, "uncordoned", dry_run=dry_run, as_json=as_json)


def _recorded_reason(target: Target, disk: str) -> str:
    """The reason of the present cordon; empty without one."""
    for served in served_disks(target).values():
        if disk in (str(served["number"]), served["path"]) and served.get("cordon") is not None:
            return str(served["cordon"]["reason"])
    return ""


def _keep_others_from(stack: ExitStack, target: Target, disk: str) -> None:
    """No other command changes the disks of the pool as long as `stack`. Raises RefusedError if one is at work, or
    if a removal that was interrupted has taken the disk out of the configuration: the next daemon would not serve
    what is written there."""
    status = control_socket.ask(target.socket, "status")
    file = status["daemon"]["configuration"]
    if file is None:
        return
    stack.enter_context(config_edit.only_editor(file))
    for entry in status["disks"]:
        is_meant = disk in (str(entry["number"]), entry["path"])
        if is_meant and all(d.path != entry["path"] for d in load_config(file).disks):
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
    show_lagging(answer)


app.command()(add)
app.command()(drain)
app.command()(cancel)
app.command()(offline)
app.command()(online)
app.command()(remove)
app.command()(replace)


@app.command(name="safe-to-remove")
def safe_to_remove(disk: DiskArgument, which: options.Mount = None, as_json: options.Json = False) -> None:
    """Report whether a disk can be unplugged. If it cannot, list what it holds and which processes have files there
    open.

    EXIT STATUS: 0 it holds nothing: `disk remove` takes it out of the pool; 1 it holds segments, open files or
    files of others, or takes new segments; 2 no such mount; 3 no daemon answers; 4 refused: the pool has no such
    disk.
    """
    target = find_target(which)
    content = ask(target, "disk-content", disk=number_or_path(disk))
    behind = content["left_behind"]
    is_empty = not content["segments"] and content["other_files"] == behind
    users = []
    if is_empty and behind:
        users = users_of_disk(target, content["number"])
    is_safe = False
    if is_empty and not users:
        unsafe = _why_not_safe(content)
        is_safe = unsafe is None
        text = f"{content['path']}: {unsafe or _describe_safe(content)}"
    else:
        users = users or users_of_disk(target, content["number"])
        text = (
            f"{content['path']}: holds {count_of(content['segments'], 'segment')} and "
            f"{count_of(content['other_files'], 'other file')}{_describe_held(content)}; "
            f"open there: {describe_file_users(users)}"
        )
        if content["segments"] and not _drains(target, content["number"]):
            text += "; run `disk drain`"
    if settings.wants_json(as_json):
        typer.echo(json.dumps({**content, "users": users_as_json(users), "safe": is_safe}))
    else:
        typer.echo(f"{target.name}: {text}")
    if not is_safe:
        raise typer.Exit(ExitCode.FINDINGS)


def _describe_safe(content: dict[str, Any]) -> str:
    """For a disk that can be unplugged."""
    if content["left_behind"]:
        return describe_left_behind(content["left_behind"])
    if content.get("unwritable"):  # a daemon of a former version does not report it
        return describe_unwritable()
    return "holds nothing of the pool; `commitlogfs disk remove` takes it out of the pool"


def _why_not_safe(content: dict[str, Any]) -> str | None:
    """Why an empty disk cannot be unplugged; None if it can. A daemon of a former version does not report it."""
    if content.get("arriving") is not None:
        return describe_arriving(content["arriving"], takes_segments=content["takes_segments"])
    if content.get("foreign") is not None:
        return describe_foreign(content["foreign"])
    if content.get("takes_segments"):
        return (
            "is empty, but takes new segments; `commitlogfs disk remove` takes it out of the pool, `disk cordon` "
            "keeps it empty"
        )
    return None


def _drains(target: Target, number: int) -> bool:
    return any(disk["number"] == number and disk["drain"] is not None for disk in served_disks(target).values())


def _describe_held(content: dict[str, Any]) -> str:
    held, aside = content["held"], content.get("set_aside", 0)  # a daemon of a former version does not report it
    parts = [describe_held(held, content.get("held_until"))] if held else []
    if aside:
        parts.append(f"{count_of(aside, 'damaged file')} of repaired segments, until `commitlogfs scrub clear`")
    return f" ({'; '.join(parts)})" if parts else ""
