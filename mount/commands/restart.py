"""`commitlogfs restart`: replace the daemon; files that are open in the mount stay open."""

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from commitlogfs.console import settings
from commitlogfs.console.errors import AbsentError, RefusedError, UnreachableError
from commitlogfs.console.output import make_console
from commitlogfs.mount.commands import options
from commitlogfs.mount.config.model import Config, load_config
from commitlogfs.mount.linux import mountinfo
from commitlogfs.mount.linux.mountinfo import resolve_path
from commitlogfs.mount.location import control_socket
from commitlogfs.mount.location.which_mount import Target, find_target
from commitlogfs.mount.preflight import configured_pool
from commitlogfs.mount.preflight.configured_pool import configured_segment_size
from commitlogfs.mount.preflight.rehearsal import why_not_mountable
from commitlogfs.store.pool.open import OnMissing

_ASK_TIMEOUT_S = 1.0
_PAUSE_S = 0.02


def register(app: typer.Typer) -> None:
    app.command()(restart)


def restart(
    which: options.Mount = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the successor.", min=0)] = 30.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would happen; change nothing.")] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Hand over even if no successor can start; requests wait until the cause is corrected."
        ),
    ] = False,
    degraded: Annotated[
        bool,
        typer.Option(
            "--degraded", help='Continue without missing disks and segments, as with on_missing = "degraded".'
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The result as one JSON object.")] = False,
) -> None:
    """Replace the daemon by a new one, for an upgrade or a changed configuration. Nothing is unmounted.

    Requests wait meanwhile; mapped files remain readable and writable. The keeper, or systemd, starts the
    successor.

    EXIT STATUS: 0 the successor answers; 1 it does not within the timeout; 2 the configuration is not usable, and
    the daemon continues with the former one; 3 no daemon answers; 4 refused, and the daemon continues: the mount
    has no keeper and would end, the installed program does not start, the configuration changes what a running
    mount cannot change, or the next mount would be refused.
    """
    target = find_target(which, reads_file=not force)
    wants_json = settings.wants_json(as_json)
    if not force:
        _check_configuration(target, degraded=degraded)
    if dry_run:
        _show_plan(control_socket.ask(target.socket, "status"), wants_json)
        return
    started = time.monotonic()
    answer = control_socket.ask(target.socket, "restart", force=force)
    if "refused" in answer:
        raise RefusedError(f"{target.name}: not restarted: {answer['refused']}")
    former: int = answer["pid"]
    with _progress(f"{target.name}: daemon {former} has handed over, waiting for its successor"):
        pid = _wait_for_successor(target, former, started + timeout)
    seconds = time.monotonic() - started
    if pid is None:
        raise AbsentError(
            f"{target.name}: no successor of daemon {former} has answered within {timeout:g} s, and requests wait; "
            "see the daemon's log for the reason"
        )
    if wants_json:
        typer.echo(
            json.dumps({"name": target.name, "former_pid": former, "pid": pid, "seconds": round(seconds, 3)})
        )
    else:
        settings.say(f"{target.name}: daemon {former} replaced by {pid} in {seconds:.2f} s")


def _check_configuration(target: Target, *, degraded: bool) -> None:
    """Raises ConfigError or RefusedError if a successor could not use the configuration: every request would wait.

    This process checks it and not the daemon, because after an upgrade only this process has the successor's
    version. A daemon that does not answer with its status is restarted without the check.
    """
    with contextlib.suppress(UnreachableError, control_socket.ControlError):
        status = control_socket.ask(target.socket, "status")
        file = status["daemon"].get("configuration")  # older versions do not report it
        if file is not None:
            config = load_config(file)
            _require_same_mount(target.name, config, status)
            _require_mountable(target.name, config, status, degraded=degraded)


def _require_same_mount(name: str, config: Config, status: dict[str, Any]) -> None:
    """Raises RefusedError if the configuration changes what is fixed for the life of a mount."""
    changed = []
    size = configured_segment_size(config)
    if resolve_path(config.mountpoint) != resolve_path(status["mountpoint"]):
        changed.append(f"mountpoint from {status['mountpoint']} to {config.mountpoint}")
    size_differs = size is not None and size != status["segments"]["size"]
    if size_differs:
        changed.append(f"segment_size from {status['segments']['size']} to {size}")
    entry = mountinfo.find_mount(status["mountpoint"])
    if "allow_other" in config.given and entry is not None and mountinfo.is_commitlogfs(entry):
        former = "allow_other" in entry.super_options
        if former != config.allow_other:
            changed.append(f"allow_other from {str(former).lower()} to {str(config.allow_other).lower()}")
    if changed:
        remedy = "change it back, or stop the broker, unmount and mount again"
        if size_differs:
            remedy = "change it back: a log keeps its segment_size, another one needs a new, empty pool"
        raise RefusedError(
            f"{name}: not restarted: {config.file} changes {' and '.join(changed)}, which a running mount cannot "
            f"follow; {remedy}"
        )


def _require_mountable(name: str, config: Config, status: dict[str, Any], *, degraded: bool) -> None:
    """Raises RefusedError if the next mount would be refused. It may come at boot, when no operator is there."""
    why_plain = status["daemon"].get("passthrough_reason")
    if config.passthrough == "required" and why_plain:
        raise RefusedError(
            f'{name}: not restarted: {config.file} has passthrough = "required", but the running mount passes '
            f"nothing through ({why_plain}); change the setting, or stop the broker, unmount and mount again"
        )
    reasons = why_not_mountable(config, OnMissing.DEGRADED if degraded else configured_pool.on_missing(config))
    if reasons:
        remedy = "" if degraded else ", or add --degraded to continue without disks and segments that are missing"
        raise RefusedError(
            f"{name}: not restarted: the next mount with {config.file} would be refused: {'; '.join(reasons)}; "
            f"correct that{remedy}"
        )


def _wait_for_successor(target: Target, former: int, deadline: float) -> int | None:
    while True:
        # For a moment no daemon answers, and a starting one does not answer at once.
        with contextlib.suppress(UnreachableError):
            pid: int = control_socket.ask(target.socket, "status", _ASK_TIMEOUT_S)["daemon"]["pid"]
            if pid != former:
                return pid
        if time.monotonic() >= deadline:
            return None
        time.sleep(_PAUSE_S)


def _show_plan(document: dict[str, Any], wants_json: bool) -> None:
    pid = document["daemon"]["pid"]
    if wants_json:
        typer.echo(json.dumps({"name": document["name"], "former_pid": pid, "pid": None, "seconds": None}))
        return
    typer.echo(
        f"{document['name']}: daemon {pid} would answer the requests that it has taken and end; another one would "
        f"take over {document['mountpoint']} and its {document['segments']['count']:,} segments. "
        "Nothing is unmounted. It is refused if the mount has no keeper."
    )


@contextlib.contextmanager
def _progress(text: str) -> Iterator[None]:
    """Show a progress line while the context lasts, on a terminal only."""
    if not sys.stderr.isatty() or settings.current().quiet:
        yield
        return
    with make_console(stderr=True).status(text):
        yield
