"""The command line in this process: what a test of many small cases can afford."""

import pytest
from support.pools import Ran

from commitlogfs.mount import cli


class CommandLine:
    """`commitlogfs ARGUMENTS`, without a new process."""

    def __init__(self, capture: pytest.CaptureFixture[bytes]) -> None:
        self._capture = capture

    def __call__(self, *arguments: object) -> Ran:
        status, out, err = self.binary(*arguments)
        return Ran(status, out.decode(), err.decode())

    def binary(self, *arguments: object) -> tuple[int, bytes, bytes]:
        self._capture.readouterr()
        status = cli.main([str(argument) for argument in arguments])
        out, err = self._capture.readouterr()
        return status, out, err
