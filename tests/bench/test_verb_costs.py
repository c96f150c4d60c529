"""`verb_costs` measures a verb with all of its processes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SPARK_START_S = 2.0
"""The JVM alone needs more of a processor."""


@pytest.mark.timing
def test_the_time_of_all_processes_is_counted(workdir: Path) -> None:
    command = [sys.executable, "-m", "commitlogfs.bench.pipeline.verb_costs", "--messages", "1000"]
    command += ["--verb", "stats", "--directory", str(workdir)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    log, verb = done.stdout.splitlines()
    assert log.startswith("1,000 messages, ")
    found = re.fullmatch(r"stats: ([\d.]+) s, ([\d.]+) s of CPU, [\d.]+ core-hours per TB", verb)
    assert found is not None, verb
    assert float(found[2]) > SPARK_START_S
    assert list(workdir.iterdir()) == []
