import fcntl
import os
import socket
import stat
import threading
from pathlib import Path

import pytest
from support.other_users import as_user

from commitlogfs.console.errors import RefusedError, UsageError
from commitlogfs.mount.location import runtime_directory


@pytest.fixture
def directory(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(runtime_directory.OVERRIDE, str(workdir / "run"))
    return workdir / "run"


@pytest.fixture
def _not_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(runtime_directory.OVERRIDE, raising=False)
    uid = os.getuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid or 1000)


def test_root_uses_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(runtime_directory.OVERRIDE, raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert runtime_directory.socket_path("broker-a") == Path("/run/commitlogfs/broker-a.sock")


@pytest.mark.usefixtures("_not_root")
def test_users_have_their_own(workdir: Path, monkeypatch: pytest.MonkeyPatch):
    os.chown(workdir, os.geteuid(), -1)
    monkeypatch.setenv("HOME", "/home/x")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(workdir))
    assert runtime_directory.runtime_directory() == workdir / "commitlogfs"
    for unusable in ("", "relative", "/absent", "/proc/1" if os.getuid() else "/"):
        monkeypatch.setenv("XDG_RUNTIME_DIR", unusable)
        assert runtime_directory.runtime_directory() == Path("/home/x/.cache/commitlogfs/run")


def test_others_may_only_pass_through_it(directory: Path):
    former = os.umask(0)
    try:
        assert runtime_directory.ensure_runtime_directory() == directory
    finally:
        os.umask(former)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o711
    assert runtime_directory.ensure_runtime_directory() == directory


@pytest.mark.parametrize("mode", [0o755, 0o700, 0o1777])
def test_another_mode_is_changed(directory: Path, mode: int):
    directory.mkdir()
    directory.chmod(mode)
    runtime_directory.ensure_runtime_directory()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o711


def test_a_symlink_or_file_is_refused(directory: Path, workdir: Path):
    (workdir / "elsewhere").mkdir()
    directory.symlink_to("elsewhere")
    for act in (runtime_directory.ensure_runtime_directory, runtime_directory.list_names):
        with pytest.raises(RefusedError, match="symbolic link"):
            act()
    directory.unlink()
    directory.touch()
    with pytest.raises(RefusedError, match="not a directory"):
        runtime_directory.ensure_runtime_directory()


@pytest.mark.root
def test_somebody_elses_directory_is_refused(directory: Path):
    directory.mkdir()
    os.chown(directory, 65534, 65534)
    for act in (runtime_directory.ensure_runtime_directory, runtime_directory.list_names):
        with pytest.raises(
            RefusedError, match=r"belongs to user 65534, not to you .*; run the command as that user"
        ):
            act()


def test_names_are_those_of_sockets(directory: Path):
    assert runtime_directory.list_names() == []
    assert not directory.exists()
    runtime_directory.ensure_runtime_directory()
    for name in ("b", "a.b"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.bind(str(runtime_directory.socket_path(name)))
    (directory / "file.sock").touch()
    (directory / "a.lock").touch()
    assert runtime_directory.list_names() == ["a.b", "b"]


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a\0", "-x", "a\n", "ä", "x" * 65])
def test_bad_names(directory: Path, name: str):
    with pytest.raises(UsageError, match="not a mount name"):
        runtime_directory.socket_path(name)


def test_a_path_too_long_for_a_socket(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(runtime_directory.OVERRIDE, "/" + "x" * 100)
    with pytest.raises(UsageError, match="too long for a socket"):
        runtime_directory.socket_path("broker-a")


def test_the_override_is_absolute(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(runtime_directory.OVERRIDE, "run")
    with pytest.raises(UsageError, match="absolute"):
        runtime_directory.runtime_directory()


def test_trouble_is_readable_while_it_is_recorded_again(directory: Path):
    directory.mkdir()
    texts = ["no daemon serves", "no daemon serves /mnt: failed starts: 7"]
    done = threading.Event()

    def record_again() -> None:
        for number in range(20_000):
            if done.is_set():
                return
            runtime_directory.record_trouble("a", texts[number % 2])

    with runtime_directory.keeper_lock_path("a").open("w") as keeper:
        fcntl.flock(keeper, fcntl.LOCK_EX)
        runtime_directory.record_trouble("a", texts[0])
        recorder = threading.Thread(target=record_again)
        recorder.start()
        seen = {runtime_directory.recorded_trouble("a") for _ in range(10_000)}
        done.set()
        recorder.join()
        assert seen == set(texts)
        runtime_directory.record_trouble("a", "")
        assert runtime_directory.recorded_trouble("a") == ""
    assert runtime_directory.recorded_trouble("a") == ""


@pytest.mark.root
def test_trouble_that_this_user_may_not_read_is_not_known(directory: Path):
    directory.mkdir()
    with runtime_directory.keeper_lock_path("a").open("w") as keeper:
        fcntl.flock(keeper, fcntl.LOCK_EX)
        os.chmod(keeper.fileno(), 0o600)

        def require_unknown() -> None:
            if runtime_directory.recorded_trouble("a") is not None:
                raise FileExistsError

        assert as_user(65534, require_unknown) == ""
    assert runtime_directory.recorded_trouble("b") == ""
