"""What a mount with this configuration would refuse now, found out without mounting.

The same checks as at a mount, made beside the running daemon. They read every disk, and one that hangs holds its
reader in the kernel, so a child process reads them, with a deadline.
"""

import contextlib
import json
import subprocess
import sys

from commitlogfs.console.errors import RefusedError, UserError
from commitlogfs.mount.config.model import Config, load_config
from commitlogfs.mount.preflight import configured_pool
from commitlogfs.mount.preflight.inspection import inspect_pool
from commitlogfs.store.findings import Severity
from commitlogfs.store.pool.open import OnMissing

TIMEOUT_S = 30.0
_KILL_GRACE_S = 1.0
_SHOWN = 3


def why_not_mountable(config: Config, on_missing: OnMissing, timeout_s: float = TIMEOUT_S) -> list[str]:
    """The reasons, of many the first few; empty if a mount would not be refused. `config` was read from a file."""
    command = [sys.executable, "-P", "-m", __name__, str(config.file), on_missing.value]
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/"
    )
    try:
        out, err = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _leave(child)
        return [f"its disks do not answer within {timeout_s:g} s"]
    if child.returncode != 0:
        return [f"its disks cannot be checked ({err.strip().rpartition(chr(10))[2]})"]
    reasons: list[str] = json.loads(out)
    return reasons


def _leave(child: subprocess.Popen[str]) -> None:
    """Kill it, and do not wait long: in the kernel it ends when its disk answers."""
    child.kill()
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_KILL_GRACE_S)


def _find_reasons(config: Config, on_missing: OnMissing) -> list[str]:
    try:
        configured_pool.demand_separate(config)
        inspection = inspect_pool(
            configured_pool.disk_specs(config),
            configured_pool.configured_segment_size(config),
            on_missing,
            config.name,
        )
    except RefusedError as error:
        return [str(error)]
    if inspection.mountable:
        return []
    blocking = [str(finding) for finding in inspection.findings if finding.severity >= Severity.REFUSES]
    if len(blocking) > _SHOWN:
        more = f"and {len(blocking) - _SHOWN} more: `commitlogfs check {config.name}` shows them all"
        return [*blocking[:_SHOWN], more]
    return blocking


def main(arguments: list[str]) -> int:
    """The child: prints the reasons as a JSON array."""
    file, on_missing = arguments
    try:
        reasons = _find_reasons(load_config(file), OnMissing(on_missing))
    except UserError as error:
        reasons = [str(error)]
    print(json.dumps(reasons))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
