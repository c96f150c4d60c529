"""Reasons for which a mount with a configuration would be refused, found without mounting, beside the running
daemon.

The checks read every disk. A disk that hangs blocks its reader in the kernel, so a child process makes them. The
caller waits as long as the child makes progress: how long the scan takes depends on how many inodes are not in
memory.
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from typing import Any

from commitlogfs.console.errors import RefusedError, UserError
from commitlogfs.mount.config.model import Config, load_config
from commitlogfs.mount.linux.process_activity import read_activity
from commitlogfs.mount.preflight import configured_pool
from commitlogfs.mount.preflight.inspection import inspect_pool
from commitlogfs.store.findings import FindingCode
from commitlogfs.store.pool.open import OnMissing, blocking

SILENCE_S = 30.0
"""How long the child may make no progress. A disk that retries a bad sector may take as long for one read."""
_CHECK_S = 1.0
_KILL_GRACE_S = 1.0
_SHOWN = 3


def why_not_mountable(
    config: Config,
    on_missing: OnMissing,
    silence_s: float = SILENCE_S,
    *,
    takes_over: bool = False,
    duplicates: Collection[str] = (),
) -> list[str]:
    """The first few reasons; empty if a mount, or a takeover, would not be refused. `config` must be from a file.
    `duplicates` are those that the running daemon knows: another one is a reason in any case, because a segment
    that is served would no longer be.

    Raises RefusedError if the scan makes no progress for `silence_s`.
    """
    known = json.dumps(sorted(duplicates))
    command = [sys.executable, "-P", "-m", __name__, str(config.file), on_missing.value, known]
    command += ["takeover"] * takes_over
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/"
    )
    answer = _wait(child, silence_s)
    if answer is None:
        _leave(child)
        raise RefusedError(
            f"{config.name}: not restarted: a disk has not answered for {silence_s:g} s, and a successor would "
            f"also wait for it; see `dmesg` and `commitlogfs doctor {config.name}`, and repair or detach that disk"
        )
    out, err = answer
    if child.returncode != 0:
        return [f"the disks cannot be checked ({err.strip().rpartition(chr(10))[2]})"]
    reasons: list[str] = json.loads(out)
    return reasons


def _wait(child: subprocess.Popen[str], silence_s: float) -> tuple[str, str] | None:
    """Output of the child; None if it does not end and has made no progress for `silence_s`."""
    activity, moved_at = read_activity(child.pid), time.monotonic()
    while True:
        try:
            return child.communicate(timeout=min(_CHECK_S, silence_s))
        except subprocess.TimeoutExpired:
            now = read_activity(child.pid)
            if now.has_run_since(activity):
                activity, moved_at = now, time.monotonic()
            elif time.monotonic() - moved_at >= silence_s:
                return None


def _leave(child: subprocess.Popen[str]) -> None:
    """Kill the child, and do not wait long: if a disk blocks it in the kernel, it ends when the disk answers."""
    child.kill()
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
    try:
        child.wait(_KILL_GRACE_S)
    except subprocess.TimeoutExpired:
        child.returncode = -signal.SIGKILL  # keeps Popen from waiting for it


def known_duplicates(status: dict[str, Any]) -> list[str]:
    """Files that a daemon does not serve because they are on several disks, by its status document."""
    code = FindingCode.DUPLICATE_SEGMENT.value
    return [finding["file"] for finding in status["findings"] if finding["code"] == code]


def _find_reasons(
    config: Config, on_missing: OnMissing, duplicates: Collection[str], *, takes_over: bool
) -> list[str]:
    try:
        configured_pool.require_separate(config)
        inspection = inspect_pool(
            configured_pool.disk_specs(config),
            configured_pool.configured_segment_size(config),
            on_missing,
            config.name,
        )
    except RefusedError as error:
        return [str(error)]
    found = blocking(inspection.findings, on_missing, takes_over=takes_over)
    of_code = [one for one in inspection.findings if one.code is FindingCode.DUPLICATE_SEGMENT]
    found += [one for one in of_code if one.file not in duplicates and one not in found]
    reasons = list(map(str, found))
    if len(reasons) > _SHOWN:
        more = f"and {len(reasons) - _SHOWN} more: `commitlogfs check {config.name}` shows them all"
        return [*reasons[:_SHOWN], more]
    return reasons


def main(arguments: list[str]) -> int:
    """Entry point of the child: it prints the reasons as a JSON array."""
    file, on_missing, duplicates, *takeover = arguments
    try:
        reasons = _find_reasons(
            load_config(file), OnMissing(on_missing), json.loads(duplicates), takes_over=bool(takeover)
        )
    except UserError as error:
        reasons = [str(error)]
    print(json.dumps(reasons))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
