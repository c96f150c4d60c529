"""A mount for which no daemon will answer any more."""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.tiny_fuse import tiny_fuse
from support.waiting import eventually

from commitlogfs.mount.keeper.detach import detach_unused
from commitlogfs.mount.keeper.options import Options
from commitlogfs.mount.linux import mountinfo
from commitlogfs.mount.linux.stop_signals import Signals
from commitlogfs.mount.location import runtime_directory
from commitlogfs.store.timing import KeeperTiming

pytestmark = [pytest.mark.mounted, pytest.mark.root]

SOON = KeeperTiming(detached_look_s=0.05)
HOLD = "import sys, time; held = open(sys.argv[1]); print('held', flush=True); time.sleep(1000)"


@pytest.fixture
def options(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    monkeypatch.setenv(runtime_directory.OVERRIDE, str(workdir / "run"))
    runtime_directory.ensure_runtime_directory()
    (workdir / "mnt").mkdir()
    return Options("tiny", str(workdir / "mnt"), ("true",))


@contextlib.contextmanager
def dead_mount(options: Options, *, held: bool = False) -> Iterator[subprocess.Popen[str] | None]:
    """A mount whose daemon has died, and a process that has a file open there."""
    with tiny_fuse(Path(options.mountpoint)) as daemon:
        holder = None
        if held:
            holder = subprocess.Popen(
                [sys.executable, "-S", "-c", HOLD, f"{options.mountpoint}/file"], stdout=subprocess.PIPE, text=True
            )
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
        daemon.kill()
        daemon.wait()
        try:
            yield holder
        finally:
            if holder is not None:
                holder.kill()
                holder.communicate()


def is_there(options: Options) -> bool:
    return mountinfo.find_mount(options.mountpoint) is not None


@pytest.mark.parametrize("patient", [True, False])
def test_a_dead_mount_without_holders_is_detached(options: Options, signals: Signals, patient: bool):
    with dead_mount(options):
        assert is_there(options)
        detach_unused(options, signals, SOON, patient=patient)
        assert not is_there(options)


def test_a_mount_that_is_gone_needs_nothing(options: Options, signals: Signals):
    detach_unused(options, signals, SOON, patient=True)


def test_a_held_mount_is_detached_when_its_holder_leaves(
    options: Options, signals: Signals, caplog: pytest.LogCaptureFixture
):
    with dead_mount(options, held=True) as holder:

        def leave_when_named() -> None:
            with contextlib.suppress(AssertionError):  # then nothing leaves, and the test runs into its timeout
                eventually(lambda: any(record.message == "dead_mount_held" for record in caplog.records))
                holder.kill()
                holder.wait()

        leaving = threading.Thread(target=leave_when_named)
        leaving.start()
        detach_unused(options, signals, SOON, patient=True)
        leaving.join()
        assert not is_there(options)
    told = [record for record in caplog.records if record.message == "dead_mount_held"]
    assert len(told) == 1
    assert f"pid {holder.pid}" in vars(told[0])["fields"]["holders"]


def test_without_patience_a_held_mount_stays(options: Options, signals: Signals):
    with dead_mount(options, held=True):
        detach_unused(options, signals, SOON, patient=False)
        assert is_there(options)


def test_a_stop_signal_ends_the_wait(options: Options, signals: Signals):
    with dead_mount(options, held=True):
        os.kill(os.getpid(), signal.SIGTERM)
        detach_unused(options, signals, SOON, patient=True)
        assert is_there(options)


@pytest.mark.parametrize("lock", [runtime_directory.keeper_lock_path, runtime_directory.lock_path])
def test_a_mount_with_a_living_keeper_or_daemon_stays(options: Options, signals: Signals, lock):
    with dead_mount(options), lock(options.name).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        detach_unused(options, signals, SOON, patient=True)
        assert is_there(options)


def test_a_mount_of_another_name_stays(options: Options, signals: Signals):
    other = Options("other", options.mountpoint, ("true",))
    with dead_mount(options):
        detach_unused(other, signals, SOON, patient=True)
        assert is_there(options)
