"""A process that crashes leaves its stacks on standard error, and no core dump."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.root

_CRASH = """
import os, resource
from commitlogfs.mount.daemon import crash
resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
{leave}
def stops_here():
    os.kill(os.getpid(), {number})
stops_here()
"""
_LEAVE = "crash.leave_stacks_and_no_core()"


def _end(workdir: Path, leave: str, number: int) -> tuple[int, str]:
    """The process's status (wait(2)) and what it has written to standard error."""
    code = _CRASH.format(leave=leave, number=int(number))
    with (workdir / "standard error").open("w+") as file:
        process = subprocess.Popen([sys.executable, "-c", code], stderr=file, cwd=workdir)
        status = os.waitpid(process.pid, 0)[1]
        process.returncode = os.waitstatus_to_exitcode(status)
        file.seek(0)
        return status, file.read()


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS])
def test_a_crash_leaves_stacks_and_no_core(workdir: Path, number: signal.Signals) -> None:
    if not os.WCOREDUMP(_end(workdir, "", number)[0]):
        pytest.skip("this machine dumps no core anyway")
    status, text = _end(workdir, _LEAVE, number)
    assert (os.WTERMSIG(status), os.WCOREDUMP(status)) == (number, False)
    assert "in stops_here" in text
