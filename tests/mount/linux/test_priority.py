"""Priority and locked memory, as the kernel shows them of real processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from commitlogfs.mount.keeper.spawn import spawn
from commitlogfs.mount.linux import priority

pytestmark = pytest.mark.root

_SHOW_NICE = "import os; print(os.getpriority(os.PRIO_PROCESS, 0))"
_SHOW = f"{_SHOW_NICE}; print(open('/proc/self/autogroup').read().split()[-1])"
_RAISE = "from commitlogfs.mount.linux import priority; priority.raise_priority()"
_LOCK = (
    "import os, resource; from commitlogfs.mount.linux import priority;"
    "status = open('/proc/self/status'); {limit};"
    "priority.lock_memory(); "
    "print(status.read().split('VmLck:')[1].split()[0])"
)


@pytest.fixture(autouse=True)
def autogroups() -> None:
    if not priority.AUTOGROUP.exists():
        pytest.skip("this kernel has no autogroups")


def _run(code: str, *, leader: bool) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, start_new_session=leader).stdout


def test_the_leader_of_a_session_raises_both_priorities():
    assert _run(f"{_RAISE}; {_SHOW}", leader=True).split() == [str(priority.NICE)] * 2


def test_in_the_session_of_somebody_else_only_its_own():
    before = priority.AUTOGROUP.read_text()  # empty in a session that has no autogroup
    assert _run(f"{_RAISE}; {_SHOW_NICE}", leader=False).split() == [str(priority.NICE)]
    assert priority.AUTOGROUP.read_text() == before


def test_a_spawned_process_has_its_priority_before_it_is_loaded(workdir: Path):
    """By the time its own code could raise it, most of the waiting is over."""
    with (workdir / "out").open("wb") as out:
        saved = os.dup(1)
        os.dup2(out.fileno(), 1)
        try:
            pid = spawn([sys.executable, "-S", "-c", _SHOW], {}, [])
        finally:
            os.dup2(saved, 1)
            os.close(saved)
    assert os.waitpid(pid, 0)[1] == 0
    assert (workdir / "out").read_text().split()[1] == str(priority.NICE)


def test_who_may_lock_memory_locks_all_of_it():
    assert int(_run(_LOCK.format(limit="pass"), leader=True)) > 8192


def test_within_a_limit_nothing_is_locked():
    """It would end the first allocation beyond the limit."""
    limit = "resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 22,) * 2); os.setuid(65534)"
    assert int(_run(_LOCK.format(limit=limit), leader=True)) == 0


def test_a_user_without_the_right_keeps_the_usual_priority():
    code = _RAISE.replace("priority.raise", "import os; os.setuid(65534); priority.raise")
    assert _run(f"{code}; {_SHOW}", leader=True).split() == [str(os.getpriority(os.PRIO_PROCESS, 0)), "0"]
