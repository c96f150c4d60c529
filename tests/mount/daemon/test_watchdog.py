"""When a daemon reports to its watchdog, in virtual time."""

from types import SimpleNamespace

import pytest
import trio
from trio.testing import MockClock

from commitlogfs.mount.daemon import served_mount
from commitlogfs.mount.daemon.served_mount import ServedMount

PATH, DEVICE, OTHER_DEVICE = "/m", 7, 8
INTERVAL_S, LIFE_S = 3.0, 5.5


def reported_s(monkeypatch: pytest.MonkeyPatch, queue: object, visible: int = DEVICE) -> list[float]:
    """Times at which a daemon reports, in its first five seconds."""
    times: list[float] = []
    monkeypatch.setattr(served_mount.notify, "watchdog_interval_s", lambda: INTERVAL_S)
    monkeypatch.setattr(served_mount.notify, "watchdog", lambda: times.append(trio.current_time()))
    monkeypatch.setattr(served_mount.mountinfo, "find_mount", lambda _path: SimpleNamespace(device=visible))
    mount = object.__new__(ServedMount)
    vars(mount).update(
        _config=SimpleNamespace(mountpoint=PATH), _device=DEVICE, _session=SimpleNamespace(queue=queue)
    )

    async def task() -> None:
        with trio.move_on_after(LIFE_S):
            await mount._feed_watchdog()

    trio.run(task, clock=MockClock(autojump_threshold=0))
    return times


def queue_that_stops(looks: list[bool]) -> SimpleNamespace:
    return SimpleNamespace(has_stopped=lambda: looks.pop(0))


def test_it_reports_three_times_in_each_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reported_s(monkeypatch, queue_that_stops([False] * 6)) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert reported_s(monkeypatch, None) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_it_does_not_report_while_no_requests_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    monkeypatch.setattr(served_mount, "log_event", lambda *arguments, **_: logged.append(arguments[2]))
    assert reported_s(monkeypatch, queue_that_stops([False, True, True, False, False, True])) == [0.0, 3.0, 4.0]
    assert logged == ["requests_not_taken"] * 3


def test_a_hidden_mount_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    times = reported_s(monkeypatch, queue_that_stops([False] * 6), OTHER_DEVICE)
    assert times == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
