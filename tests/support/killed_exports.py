"""An export into a table that is killed at one step of the code that makes the table."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

TESTS = Path(__file__).parents[1]

_KILLED = """
import importlib, os, signal, sys
from pathlib import Path
from support.spark import local_session
module, directory, step, scratch, *traced = sys.argv[1:]
test = importlib.import_module(module)
steps = 0
def trace(frame, event, arg):
    global steps
    if frame.f_code.co_filename.endswith(tuple(traced)) and event == "line":
        steps += 1
        if steps == int(step):
            os.kill(os.getpid(), signal.SIGKILL)
    return trace
with local_session(Path(scratch)) as spark:
    sys.settrace(trace)
    test.run(spark, Path(directory))
"""


def run_killed(test: ModuleType, directory: Path, scratch: Path, step: int, traced: Sequence[str]) -> None:
    """Call `run` of a test module in a process that dies at this line, counted in the files whose names end as in
    `traced`. `scratch` is a directory with a short path, for Spark's sockets."""
    scratch.mkdir()
    assert test.__file__ is not None
    file = Path(test.__file__)
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, file.stem, *map(str, (directory, step, scratch)), *traced],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(file.parent), str(TESTS)))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
