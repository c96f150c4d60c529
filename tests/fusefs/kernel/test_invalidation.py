"""Notifications to the kernel, with a pipe in place of its device."""

import errno
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from commitlogfs.fusefs.kernel import invalidation
from commitlogfs.fusefs.kernel.invalidation import Invalidation, notification

NAMES = [b"%020d" % index for index in range(3)]
ALL = b"".join(notification(name, 0) for name in NAMES)


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Where the messages arrive; reading does not wait for them."""
    received, device = os.pipe2(os.O_NONBLOCK)
    monkeypatch.setattr(invalidation, "_find_device", lambda: device)
    yield received
    os.close(received)
    os.close(device)


@asynccontextmanager
async def served(*names: bytes) -> AsyncIterator[Invalidation]:
    """`names` are to be sent, and sending runs."""
    invalidation = Invalidation()
    for name in names:
        invalidation.invalidate(name, 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(invalidation.run)
        yield invalidation
        nursery.cancel_scope.cancel()


def test_sent_returns_when_all_names_are_with_the_kernel(received: int) -> None:
    async def main() -> None:
        await Invalidation().sent()  # there is none
        async with served(*NAMES[:2]) as names:
            await names.sent()
            assert os.read(received, 4096) == b"".join(notification(name, 0) for name in NAMES[:2])
            names.invalidate(NAMES[2], 7)
            await names.sent()
            assert os.read(received, 4096) == notification(NAMES[2], 7)

    trio.run(main)


def fail_first(monkeypatch: pytest.MonkeyPatch, *failures: OSError | int) -> list[bytes]:
    """Make the first attempts fail: a process cannot be started, or ends with a status and has sent nothing. The
    result will hold what each attempt was to send."""
    left, attempts = list(failures), list[bytes]()

    def run(command: list[str], *, input: bytes, **options: Any) -> subprocess.CompletedProcess[bytes]:  # noqa: A002
        attempts.append(input)
        failure = left.pop(0) if left else 0
        if isinstance(failure, OSError):
            raise failure
        if failure:
            return subprocess.CompletedProcess(command, failure, stderr=b"")
        return subprocess.run(command, input=input, **options)

    monkeypatch.setattr(invalidation, "subprocess", SimpleNamespace(run=run, PIPE=subprocess.PIPE))
    return attempts


NO_PROCESS = OSError(errno.EAGAIN, "Resource temporarily unavailable")


@pytest.mark.parametrize("failures", [(NO_PROCESS,), (-9,), (1,), (NO_PROCESS, NO_PROCESS, -9)])
def test_names_that_no_process_has_sent_are_sent_later(
    failures: tuple[OSError | int, ...], received: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = fail_first(monkeypatch, *failures)

    async def main() -> None:
        async with served(*NAMES) as names:
            await names.sent()
            assert os.read(received, 4096) == ALL

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert attempts == [ALL] * (len(failures) + 1)


def test_names_are_sent_later_if_no_thread_can_be_started(
    received: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The machine, or the daemon's user, has as many processes as it may have."""
    run_sync, failures = trio.to_thread.run_sync, [RuntimeError("can't start new thread")]

    async def run_sync_later(*arguments: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return await run_sync(*arguments, **options)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync_later)

    async def main() -> None:
        async with served(*NAMES) as names:
            await names.sent()
            assert os.read(received, 4096) == ALL

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert [record.__dict__["fields"]["reason"] for record in caplog.records] == ["can't start new thread"]


def test_names_keep_their_order_after_a_failure(received: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_first(monkeypatch, NO_PROCESS)

    async def main() -> None:
        async with served(NAMES[0]) as names:
            with trio.move_on_after(0.5):
                await names.sent()
                pytest.fail("nothing is sent yet")
            names.invalidate(NAMES[1], 0)
            names.invalidate(NAMES[2], 0)
            await names.sent()
            assert os.read(received, 4096) == ALL

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_each_reason_of_failed_attempts_is_logged_once(
    received: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fail_first(monkeypatch, NO_PROCESS, NO_PROCESS, -9, NO_PROCESS, -9)

    async def main() -> None:
        async with served(NAMES[0]) as names:
            await names.sent()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert os.read(received, 4096) == notification(NAMES[0], 0)
    assert len([record for record in caplog.records if "names_not_forgotten" in record.getMessage()]) == 2


def test_a_refusal_of_the_kernel_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is a file that cannot be written to."""
    device = os.open("/dev/null", os.O_RDONLY)
    monkeypatch.setattr(invalidation, "_find_device", lambda: device)
    attempts = fail_first(monkeypatch)

    async def main() -> None:
        async with served(NAMES[0]) as names:
            await names.sent()

    trio.run(main)
    os.close(device)
    assert len(attempts) == 1
