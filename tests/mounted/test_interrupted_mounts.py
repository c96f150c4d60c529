"""Ctrl-C at many moments of `mount`: it has not mounted, or it unmounts; nothing is left behind."""

import os
import signal
import subprocess
import sys
import time

import pytest
from support.pools import PoolMount
from support.waiting import PATIENCE_S, eventually

from commitlogfs.mount.linux import mountinfo
from commitlogfs.store.files.locks import lock_holder

pytestmark = [pytest.mark.mounted, pytest.mark.full]

# The console script, which says when its own code begins: what an interpreter prints before that is its own, also
# between that word and the first line of the command.
_SCRIPT = """
import os, signal, sys
from commitlogfs.mount.entry import command_line
signal.signal(signal.SIGINT, lambda *_: os._exit(130))
print("begun", flush=True)
sys.exit(command_line())
"""
_SILENT = (0, 130, -signal.SIGINT)
"""Unmounted; interrupted; interrupted when the interpreter had taken its handlers away. A shell calls both 130."""


def start(pool: PoolMount, *options: str) -> subprocess.Popen[str]:
    """In a process group of its own, as a shell starts a command in the foreground; returns when it has begun."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, "mount", *options, str(pool.config)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **pool.env},
        text=True,
        process_group=0,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def is_served(pool: PoolMount) -> bool:
    return lock_holder(str(pool.runtime / f"{pool.name}.lock")) is not None


def seconds_until_ready(pool: PoolMount, *options: str) -> float:
    process = start(pool, *options)
    started = time.monotonic()
    assert process.stderr is not None
    if "--daemon" in options:
        assert process.wait(timeout=PATIENCE_S) == 0
    else:
        assert any("event=ready" in line for line in process.stderr)
    seconds = time.monotonic() - started
    assert pool.cli("umount", pool.mountpoint).status == 0
    process.communicate(timeout=PATIENCE_S)
    return seconds


def interrupt_at(pool: PoolMount, delay_s: float, *options: str) -> None:
    process = start(pool, *options)
    time.sleep(delay_s)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    for word in ("Traceback", "KeyboardInterrupt", "Exception ignored", "Fatal Python error"):
        assert word not in err, (delay_s, err)
    assert process.returncode in _SILENT, (delay_s, process.returncode, err)
    if "--daemon" in options and process.returncode == 0:
        assert pool.cli("umount", pool.mountpoint).status == 0
    # A daemon in the background, or its keeper, may be ending still.
    eventually(
        lambda: mountinfo.find_mount(pool.mountpoint) is None,
        shown=lambda: f"{delay_s}: {process.returncode} {err}",
    )
    eventually(lambda: not is_served(pool), shown=lambda: str(delay_s))
    eventually(lambda: lock_holder(str(pool.runtime / f"{pool.name}.keep")) is None, shown=lambda: str(delay_s))


@pytest.mark.parametrize(
    "options", [(), ("--no-keeper",), ("--daemon",), ("--daemon", "--no-keeper")], ids=" ".join
)
@pytest.mark.parametrize("number", [5, pytest.param(60, marks=pytest.mark.soak)])
def test_an_interrupted_mount_leaves_nothing(make_pool, options, number):
    pool = make_pool(2)
    whole_s = seconds_until_ready(pool, *options)
    for index in range(number):
        interrupt_at(pool, whole_s * index / (number - 1), *options)
