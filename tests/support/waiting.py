"""Waiting for a condition instead of for a time. Nothing else in the gate waits (tests/test_architecture.py)."""

import time
from collections.abc import Callable
from typing import TypeVar

import trio

T = TypeVar("T")

PATIENCE_S = 120.0
"""How long anything is waited for: far longer than a busy machine needs, and shorter than pytest's limit for a
test, so that a failure shows what was missing. A test that passes does not take longer for it."""


def eventually(condition: Callable[[], T], timeout_s: float = PATIENCE_S, shown: Callable[[], str] = str) -> T:
    """The first true value of `condition`; an AssertionError or RuntimeError in it counts as not yet. What `shown`
    returns is part of the failure: a log, for instance."""
    deadline = time.monotonic() + timeout_s
    while True:
        trouble: Exception | None = None
        try:
            value = condition()
            if value:
                return value
        except (AssertionError, RuntimeError) as error:
            trouble = error
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {trouble or condition}\n{shown()}".rstrip())
        time.sleep(0.02)


async def until(condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    """As `eventually`, for the tasks of an event loop."""
    with trio.fail_after(timeout_s):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in several tasks and threads
            await trio.sleep(0.01)
