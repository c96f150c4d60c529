"""The `commitlogfs` command: as a process, and in this process, which spares 0.6 s of processor time."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from support.waiting import PATIENCE_S

from commitlogfs.mount import cli

COMMAND = (str(Path(sys.executable).with_name("commitlogfs")),)
PIPELINE = (str(Path(sys.executable).with_name("commitlogfs-pipeline")),)
_PLAIN_OUTPUT = {"COLUMNS": "200", "NO_COLOR": "1"}
_OUTPUTS = (1, 2)
_NEEDS_A_PROCESS = {"mount", "top"}
"""Verbs that change the process they run in, fork it, or leave processes behind."""


LOAD_VERB = """
import contextlib, io
from commitlogfs.mount import cli
def load_verb(name):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        cli.main([name, "--help"])
        cli.main([name, "--no-such-option"])
"""
"""Code of a program that becomes another user, who need not be able to read the installation: a verb loads what it
needs when it is called, so `load_verb` calls it before."""


@dataclass(slots=True)
class Ran:
    """A finished command."""

    status: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


def run_process(*arguments: object, env: Mapping[str, str] | None = None, user: int | None = None) -> Ran:
    """Run `commitlogfs ARGUMENTS` as a process, as `user`, to its end."""
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, **_PLAIN_OUTPUT, **(env or {})},
        timeout=PATIENCE_S,
        check=False,
        user=user,
        group=user,
        extra_groups=[] if user is not None else None,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def run_cli(*arguments: object, env: Mapping[str, str] | None = None) -> Ran:
    """Run `commitlogfs ARGUMENTS` to its end, in this process where that makes no difference."""
    if arguments[0] in _NEEDS_A_PROCESS or threading.current_thread() is not threading.main_thread():
        return run_process(*arguments, env=env)
    with mock.patch.dict(os.environ, {**_PLAIN_OUTPUT, **(env or {})}):
        return CommandLine()(*arguments)


class CommandLine:
    """`commitlogfs ARGUMENTS` in this process. The output of child processes is part of the command's output."""

    def __call__(self, *arguments: object) -> Ran:
        status, out, err = self.binary(*arguments)
        return Ran(status, out.decode(), err.decode())

    def binary(self, *arguments: object) -> tuple[int, bytes, bytes]:
        """The exit status, standard output and standard error."""
        with _captured() as (out, err):
            status = cli.main([str(argument) for argument in arguments])
        return status, bytes(out), bytes(err)


@contextmanager
def _captured() -> Iterator[tuple[bytearray, bytearray]]:
    """Standard output and standard error, by descriptor; the two results are filled at the end."""
    results = bytearray(), bytearray()
    saved = [os.dup(number) for number in _OUTPUTS]
    files = [os.memfd_create(f"descriptor-{number}") for number in _OUTPUTS]
    for number, file in zip(_OUTPUTS, files, strict=True):
        os.dup2(file, number)
    try:
        with (
            open(1, "w", encoding="utf-8", closefd=False) as out,
            open(2, "w", encoding="utf-8", closefd=False) as err,
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            yield results
    finally:
        for number, original, file, result in zip(_OUTPUTS, saved, files, results, strict=True):
            os.dup2(original, number)
            os.close(original)
            result += os.pread(file, os.fstat(file).st_size, 0)
            os.close(file)
