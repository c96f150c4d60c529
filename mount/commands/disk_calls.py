"""Common parts of the `disk` verbs: questions to the daemon, and its replacement by one that serves other disks."""

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from commitlogfs.console.errors import AbsentError, RefusedError
from commitlogfs.console.output import waiting_line
from commitlogfs.fusefs.kernel.inodes import is_on_disk
from commitlogfs.mount.config import edit as config_edit
from commitlogfs.mount.config.edit import Edit
from commitlogfs.mount.config.model import Config, path_argument
from commitlogfs.mount.linux.holders import FileUser, find_file_users
from commitlogfs.mount.location import control_socket
from commitlogfs.mount.location.replacement import replace_daemon
from commitlogfs.mount.location.which_mount import Target
from commitlogfs.mount.preflight import configured_pool
from commitlogfs.mount.preflight.rehearsal import known_duplicates, why_not_mountable
from commitlogfs.store.pool.open import OnMissing

_POLL_S: Final = 0.05

DiskArgument = Annotated[
    str, typer.Argument(metavar="DISK", help="Number or path of a disk, as `disk list` shows them.")
]
Timeout = Annotated[float, typer.Option(help="Seconds to wait for the next daemon.", min=0)]


def number_or_path(text: str) -> str:
    return text if text.isdecimal() else path_argument(text)


def hand_over(target: Target, timeout: float, undo: ExitStack) -> int:
    """Process id of the successor. From the moment on at which one may have started, nothing is undone."""
    try:
        pid = replace_daemon(target, timeout).pid
    except RefusedError:
        raise
    except BaseException:
        undo.pop_all()
        raise
    undo.pop_all()
    return pid


def show_lagging(answer: dict[str, Any]) -> None:
    """Name the disks that have not recorded a change."""
    for path in answer["lagging"]:
        typer.echo(f"{path}: has not recorded the change yet; it will when it can be written", err=True)


def require_recorded(target: Target, lagging: Sequence[str]) -> None:
    """Raises RefusedError if there are disks that have not recorded a change before a hand-over."""
    if lagging:
        raise RefusedError(
            f"{target.name}: {', '.join(lagging)}: cannot record the change, and may hang, so that the next "
            "daemon would wait for it; repair or detach it first"
        )


def users_of_disk(target: Target, number: int) -> list[FileUser]:
    """Processes that have files of a disk open."""
    mountpoint = control_socket.ask(target.socket, "status")["mountpoint"]
    return find_file_users(mountpoint, partial(is_on_disk, disk=number))


def users_as_json(users: Sequence[FileUser]) -> list[dict[str, Any]]:
    return [{"pid": user.pid, "command": user.comm, "files": user.files} for user in users]


def served_disks(target: Target) -> dict[str, dict[str, Any]]:
    """The disks that the daemon serves, by path."""
    return {disk["path"]: disk for disk in control_socket.ask(target.socket, "status")["disks"]}


def ask(target: Target, verb: str, **arguments: str | bool | int | list[int]) -> dict[str, Any]:
    """The daemon's answer, with the mount's name. Raises RefusedError, UnreachableError, ControlError."""
    answer = control_socket.ask(target.socket, verb, control_socket.PEER_TIMEOUT_S, **arguments)
    if "refused" in answer:
        raise RefusedError(f"{target.name}: {answer['refused']}")
    return {"name": target.name, **answer}


def require_configuration(name: str, status: dict[str, Any]) -> str:
    """Raises RefusedError if no other daemon could serve a new disk."""
    daemon = status["daemon"]
    file: str | None = daemon["configuration"]
    if file is None:
        raise RefusedError(
            f"{name}: was mounted without a configuration file, by which the next daemon would know its disks; "
            "write a file with its disks (docs/reference/configuration.md), unmount, and mount that"
        )
    if not daemon["takeover_available"]:
        raise RefusedError(
            f"{name}: another daemon has to take the mount over to serve other disks, and none could "
            f"({daemon['takeover_unavailable_reason']}); correct that first"
        )
    return file


def wait_until(
    target: Target, condition: Callable[[dict[str, dict[str, Any]]], bool], failure: str, timeout: float
) -> dict[str, dict[str, Any]]:
    """The disks that the daemon serves, by path, once they meet the condition. Raises AbsentError."""
    deadline = time.monotonic() + timeout
    with waiting_line(f"{target.name}: waiting for its new daemon"):
        while True:
            served = served_disks(target)
            if condition(served):
                return served
            if time.monotonic() >= deadline:
                raise AbsentError(
                    f"{target.name}: {failure} after {timeout:g} s; see `commitlogfs disk list` and the log"
                )
            time.sleep(_POLL_S)


def wait_until_gone(target: Target, number: int, timeout: float) -> None:
    """Returns once the daemon serves no disk of this number. Raises AbsentError."""
    wait_until(
        target,
        lambda served: number not in {disk["number"] for disk in served.values()},
        f"disk {number} is still served",
        timeout,
    )


def plan_removal(present: Config, file: str, path: str) -> Edit | None:
    """None if the file does not name the disk any more: an earlier command was interrupted."""
    if all(disk.path != path for disk in present.disks):
        return None
    return config_edit.remove_disk(file, path)


def take_back(planned: Edit | None) -> None:
    """Undo an edit, unless the file has changed since."""
    if planned is not None and planned.file.read_bytes() == planned.text.encode():
        config_edit.take_back(planned)


def rehearse(
    target: Target, config: Config, planned: Edit | None, what: str, *, may_lack_segments: bool = False
) -> None:
    """Raises RefusedError if a daemon with the new configuration, not written yet, would not mount, or would not
    serve a segment any more of which a disk that is back has another file. `may_lack_segments`: it may lack disks
    and other segments, also the newest one."""
    name, duplicates = target.name, known_duplicates(control_socket.ask(target.socket, "status"))
    on_missing = OnMissing.DEGRADED if may_lack_segments else configured_pool.on_missing(config)
    with tempfile.TemporaryDirectory() as directory:
        if planned is not None:
            copy = Path(directory) / f"{config.name}.toml"
            copy.write_text(planned.text, encoding="utf-8")
            config = replace(config, file=str(copy))
        reasons = why_not_mountable(config, on_missing, takes_over=may_lack_segments, duplicates=duplicates)
    if reasons:
        raise RefusedError(
            f"{name}: the disk is not {what}: the next mount would be refused, or lack segments: "
            f"{'; '.join(reasons)}; correct that"
        )
