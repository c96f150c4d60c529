"""Interrupts: which processes get them, and when."""

import signal
import subprocess
import sys

from support.waiting import PATIENCE_S

PROGRAM = """
import os, signal, subprocess, sys
from commitlogfs.bench.interrupts import InterruptedByUserError, Interrupts
CHILD = "import sys; print('up', flush=True); sys.stdin.readline(); print('not interrupted', flush=True)"
interrupts = Interrupts()
interrupts.install()
try:
    with interrupts.shielded():
        os.killpg(0, signal.SIGINT)
        {step}
except InterruptedByUserError as interrupt:
    # In our process group, like a child that has not made its own session yet.
    pipes = {{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}}
    child = subprocess.Popen([sys.executable, "-c", CHILD], **pipes)
    child.stdout.readline()
    os.killpg(0, signal.SIGINT)
    said, _ = child.communicate("go on\\n")
    print(interrupt, child.returncode, said, end="")
"""


def run(step: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(step=step)],
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
        timeout=PATIENCE_S,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_clears_up_is_interrupted_no_more() -> None:
    assert run("pass") == "SIGINT 0 not interrupted\n"


def test_an_interrupt_comes_before_the_error_of_the_step_it_has_ended() -> None:
    assert run("raise OSError('killed by the same Ctrl-C')") == "SIGINT 0 not interrupted\n"
