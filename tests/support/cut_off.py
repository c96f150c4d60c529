"""Cutting a sequence of changes of a directory off, as a crash would."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest


class CutOffError(BaseException):
    """No error that anybody handles: the process is gone."""


@contextmanager
def cut_off_after(
    monkeypatch: pytest.MonkeyPatch, allowed: int, steps: Sequence[str] = ("setxattr", "removexattr")
) -> Iterator[list[bool]]:
    """Ends the block before its change number `allowed` + 1. The list that is returned is empty unless it was.

    `steps` are the functions of `os` that count as a change.
    """
    left, was_cut_off = [allowed], list[bool]()

    def counted(step: Callable[..., None]) -> Callable[..., None]:
        def count_and_do(*arguments: Any, **options: Any) -> None:
            if not left[0]:
                raise CutOffError
            left[0] -= 1
            step(*arguments, **options)

        return count_and_do

    with monkeypatch.context() as patch:
        for name in steps:
            patch.setattr(os, name, counted(getattr(os, name)))
        try:
            yield was_cut_off
        except CutOffError:
            was_cut_off.append(True)
