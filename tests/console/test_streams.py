"""Commands whose standard output is closed, or whose reader has gone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(sys.executable).parent
COMMANDS = ("commitlogfs config show --help", "commitlogfs --version", "commitlogfs-pipeline --version")


@pytest.mark.parametrize("line", COMMANDS)
@pytest.mark.parametrize("stream", ["1", "2"])
def test_a_closed_stream_changes_nothing(line: str, stream: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{SCRIPTS}/{line} {stream}>&-"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("line", COMMANDS)
def test_a_reader_that_has_gone_is_no_error(line: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command, *arguments = line.split()
    done = subprocess.run(
        [SCRIPTS / command, *arguments], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
