"""Notifications to the kernel, with a pipe in place of its device."""

import os

import pytest
import trio

from commitlogfs.fusefs.kernel import invalidation
from commitlogfs.fusefs.kernel.invalidation import Invalidation, notification

NAMES = [b"%020d" % index for index in range(3)]


def test_sent_returns_when_all_names_are_with_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    received, device = os.pipe()
    monkeypatch.setattr(invalidation, "_find_device", lambda: device)

    async def main() -> None:
        names = Invalidation()
        await names.sent()  # there is none
        for name in NAMES[:2]:
            names.invalidate(name, 0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(names.run)
            await names.sent()
            assert os.read(received, 4096) == b"".join(notification(name, 0) for name in NAMES[:2])
            names.invalidate(NAMES[2], 7)
            await names.sent()
            assert os.read(received, 4096) == notification(NAMES[2], 7)
            nursery.cancel_scope.cancel()

    trio.run(main)
    os.close(received)
    os.close(device)
