"""Which probes of a mount that was taken over count: another filesystem may hide it at any moment."""

from types import SimpleNamespace

import pytest
import trio

from commitlogfs.console.errors import RefusedError
from commitlogfs.mount.daemon import served_mount
from commitlogfs.mount.daemon.served_mount import ServedMount
from commitlogfs.mount.linux.probe import ProbeResult

PATH, DEVICE, OTHER_DEVICE = "/m", 7, 8
ANSWERS, HANGS = ProbeResult(ok=True, reason="", seconds=0.1), ProbeResult(ok=False, reason="hangs", seconds=0.1)
VISIBLE, HIDDEN = SimpleNamespace(device=DEVICE), SimpleNamespace(device=OTHER_DEVICE)


class ReadyError(Exception):
    """Ends the announcement where the mount is ready."""


class Announced:
    """An announcement whose probes, and whose looks for the mount, have results in this order. More of them than
    given fail."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, probes: list[ProbeResult], looks: list[SimpleNamespace | None]
    ) -> None:
        self.probes, self.looks = probes, looks
        monkeypatch.setattr(served_mount, "probe_mount", lambda _path, _timeout_s: probes.pop(0))
        monkeypatch.setattr(served_mount.mountinfo, "find_mount", lambda _path: looks.pop(0))
        monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
        self._mount = object.__new__(ServedMount)
        vars(self._mount).update(
            _config=SimpleNamespace(mountpoint=PATH),
            _device=DEVICE,
            _failure=None,
            _inherited=SimpleNamespace(),
            _timing=SimpleNamespace(probe_s=1.0),
            _is_stopping=False,
            _commitlog=SimpleNamespace(catalog=[]),
        )

    def run(self) -> None:
        def ready() -> None:
            raise ReadyError

        trio.run(self._mount._announce, ready)

    def stop(self) -> None:
        self._mount._is_stopping = True


@pytest.mark.parametrize(
    ("probes", "looks"),
    [
        ([], [HIDDEN]),
        ([ANSWERS], [VISIBLE]),
        ([HANGS, ANSWERS], [VISIBLE, VISIBLE]),  # hidden during one probe
        ([HANGS], [VISIBLE, HIDDEN]),
        ([HANGS], [VISIBLE, None]),
        ([HANGS, HANGS], [VISIBLE, VISIBLE, HIDDEN]),
    ],
)
def test_a_mount_that_may_be_hidden_is_ready(
    monkeypatch: pytest.MonkeyPatch, probes: list[ProbeResult], looks: list[SimpleNamespace | None]
) -> None:
    with pytest.raises(ReadyError):
        Announced(monkeypatch, probes, looks).run()
    assert (probes, looks) == ([], [])


def test_a_mount_that_is_visible_again_right_after_a_look_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    announced = Announced(monkeypatch, [HANGS], [VISIBLE, HIDDEN, VISIBLE])
    with pytest.raises(ReadyError):
        announced.run()
    assert announced.looks == [VISIBLE], "one look decides"


def test_a_visible_mount_that_does_not_answer_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    announced = Announced(monkeypatch, [HANGS, HANGS], [VISIBLE, VISIBLE, VISIBLE])
    with pytest.raises(RefusedError, match=r"taken over, but it does not answer \(hangs\)"):
        announced.run()
    assert announced.probes == []


def test_a_mount_that_is_unmounted_during_its_probe_does_not_get_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    announced = Announced(monkeypatch, [HANGS], [VISIBLE, None])
    announced.stop()
    announced.run()
