"""Output of child processes with a deadline: what may wait for a disk or a mount runs in one."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Collection, Sequence
from typing import Final

from commitlogfs.mount.debugging.pieces import NotCollectedError

_GRACE_S: Final = 0.2
"""How long a killed child may take to end. One that waits for a disk ends when that answers."""
_PLAIN_OUTPUT: Final = {"COLUMNS": "200", "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}


def output_of(command: Sequence[str], timeout_s: float, good: Collection[int] = (0,)) -> bytes:
    """Standard output of a command. Raises NotCollectedError if it does not end in time, or with a status that is
    not in `good`."""
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env={**os.environ, **_PLAIN_OUTPUT},
        )
    except OSError as error:
        raise NotCollectedError(f"{command[0]}: {error.strerror}") from error
    try:
        out, err = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _give_up(child)
        raise NotCollectedError(f"no answer within {timeout_s:g} s") from None
    if child.returncode not in good:
        said = err.decode(errors="replace").strip().splitlines()
        raise NotCollectedError(said[-1] if said else f"{command[0]}: exit status {child.returncode}")
    return out


def output_of_verb(*arguments: str, timeout_s: float, good: Collection[int] = (0,)) -> bytes:
    """`output_of` a verb of commitlogfs."""
    return output_of((sys.executable, "-P", "-m", "commitlogfs.mount.cli", *arguments), timeout_s, good)


def end_of_file(path: str, size: int, timeout_s: float) -> bytes:
    """The last `size` bytes of a file. Raises NotCollectedError."""
    return output_of(("tail", "-c", str(size), "--", path), timeout_s)


def _give_up(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_GRACE_S)
        return
    child.returncode = -9  # it is gone when the disk answers; nobody waits for it
