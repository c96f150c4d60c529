"""A real SIGINT while a command loads and while it works: silent, exit status 130, and nothing left behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.waiting import PATIENCE_S

_INTERRUPTED = 130

# Interrupts itself at the nth module that is looked for, once the console script has begun; 0: prints how many.
_HARNESS = """
import os, signal, sys
from importlib import import_module
nth, module, function = int(sys.argv[1]), sys.argv[2], sys.argv[3]
entry = getattr(import_module(module), function)

class Interrupter:
    count = 0
    def find_spec(self, name, path=None, target=None):
        Interrupter.count += 1
        if Interrupter.count == nth:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupter())
sys.argv[1:4] = []
status = entry()
if not nth:
    print(Interrupter.count, file=sys.stderr)
sys.exit(status)
"""
_ENTRIES = {
    "commitlogfs": ("commitlogfs.mount.entry", "command_line"),
    "commitlogfs-daemon": ("commitlogfs.mount.entry", "daemon"),
    "mount.commitlogfs": ("commitlogfs.mount.entry", "mount_helper"),
    "commitlogfs-pipeline": ("commitlogfs.pipeline.entry", "main"),
}


def run(
    nth: int, script: str, *arguments: str, directory: Path, **options: Any
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _HARNESS, str(nth), *_ENTRIES[script], *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "COMMITLOGFS_RUNTIME_DIR": str(directory)},
        timeout=PATIENCE_S,
        check=False,
        **options,
    )


def moments(count: int, number: int) -> list[int]:
    """`number` of the modules 1 ... `count`, the first and the last among them."""
    return sorted({1 + round((count - 1) * index / (number - 1)) for index in range(number)})


@pytest.mark.parametrize(
    ("script", "arguments", "status", "number"),
    [
        ("commitlogfs", ("status", "nobody"), 2, 8),
        ("commitlogfs", ("config", "import", "{directory}/broker.conf"), 1, 5),
        ("commitlogfs-daemon", ("/nonexistent/x.toml",), 2, 4),
        ("mount.commitlogfs", ("x", "/mnt"), 32, 4),
        ("commitlogfs-pipeline", ("stats", "/nonexistent"), 3, 8),
    ],
)
def test_an_interrupt_while_a_command_loads_is_silent(workdir, script, arguments, status, number):
    (workdir / "broker.conf").write_text("brokerName = a\n")
    arguments = tuple(argument.format(directory=workdir) for argument in arguments)
    whole = run(0, script, *arguments, directory=workdir)
    assert whole.returncode == status, whole.stderr
    for nth in moments(int(whole.stderr.split()[-1]), number):
        ran = run(nth, script, *arguments, directory=workdir)
        assert (ran.returncode, ran.stderr) == (_INTERRUPTED, ""), nth


def test_a_command_that_ignores_interrupts_continues(workdir):
    """As a shell starts it with `&`, or nohup."""

    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    assert run(50, "commitlogfs", "config", "--help", directory=workdir, preexec_fn=ignore).returncode == 0


def test_an_interrupt_while_the_interpreter_ends_does_not_change_the_status() -> None:
    program = """
import os, signal, sys
from commitlogfs.console import interrupts

class Interrupter:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGINT):
        kill(pid, number)

def work():
    raise KeyboardInterrupt

sys.left = Interrupter()  # goes with its module, after the last atexit call
sys.exit(interrupts.run(lambda: work))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=PATIENCE_S, check=False)
    assert (ran.returncode, ran.stderr) == (_INTERRUPTED, b"")


def test_an_interrupt_while_an_object_is_freed_is_not_lost() -> None:
    program = """
import os, signal, sys, time
from commitlogfs.console import interrupts

class Interrupter:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)

def work():
    Interrupter()
    time.sleep(30)
    return 0

sys.exit(interrupts.run(lambda: work))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=PATIENCE_S, check=False)
    assert (ran.returncode, ran.stderr) == (_INTERRUPTED, b"")
