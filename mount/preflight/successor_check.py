"""Whether a successor of a running daemon could use the configuration, found out before the daemon hands over."""

import contextlib
from typing import Any

from commitlogfs.console.errors import RefusedError, UnreachableError
from commitlogfs.mount.config.model import Config, load_config
from commitlogfs.mount.linux import mountinfo
from commitlogfs.mount.linux.mountinfo import resolve_path
from commitlogfs.mount.location import control_socket
from commitlogfs.mount.location.which_mount import Target
from commitlogfs.mount.preflight import configured_pool
from commitlogfs.mount.preflight.configured_pool import configured_segment_size
from commitlogfs.mount.preflight.rehearsal import known_duplicates, why_not_mountable
from commitlogfs.store.pool.open import OnMissing


def check_configuration(target: Target, *, degraded: bool, is_automatic: bool = False) -> None:
    """Raises ConfigError or RefusedError if a successor could not use the configuration: every request would wait.
    If no operator has asked, a mount that a takeover can continue, and that could not begin, is no reason.

    This process checks it and not the daemon, because after an upgrade only this process has the successor's
    version. A daemon that does not answer with its status is restarted without the check.
    """
    with contextlib.suppress(UnreachableError, control_socket.ControlError):
        status = control_socket.ask(target.socket, "status")
        file = status["daemon"].get("configuration")  # older versions do not report it
        if file is not None:
            config = load_config(file)
            require_same_mount(target.name, config, status)
            _require_mountable(target.name, config, status, degraded=degraded, is_automatic=is_automatic)


def require_same_mount(name: str, config: Config, status: dict[str, Any], not_done: str = "not restarted") -> None:
    """Raises RefusedError if the configuration changes what is fixed for the life of a mount. `not_done` is a part
    of its message."""
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
            f"{name}: {not_done}: {config.file} changes {' and '.join(changed)}, which a running mount cannot "
            f"follow; {remedy}"
        )


def _require_mountable(
    name: str, config: Config, status: dict[str, Any], *, degraded: bool, is_automatic: bool
) -> None:
    """Raises RefusedError if the next mount would be refused, which may come at boot, when no operator is there, or
    if it would no longer serve a segment, because a disk that is back has another file of it."""
    why_plain = status["daemon"].get("passthrough_reason")
    if config.passthrough == "required" and why_plain:
        raise RefusedError(
            f'{name}: not restarted: {config.file} has passthrough = "required", but the running mount passes '
            f"nothing through ({why_plain}); change the setting, or stop the broker, unmount and mount again"
        )
    on_missing = OnMissing.DEGRADED if degraded else configured_pool.on_missing(config)
    duplicates = known_duplicates(status)
    reasons = why_not_mountable(config, on_missing, takes_over=is_automatic, duplicates=duplicates)
    if reasons:
        remedy = "" if degraded else ", or add --degraded to continue without disks and segments that are missing"
        raise RefusedError(
            f"{name}: not restarted: the next mount with {config.file} would be refused, or lack segments: "
            f"{'; '.join(reasons)}; correct that{remedy}"
        )
