"""The keeper, over daemons that do nothing but speak its protocol: see support/stub_daemon.py."""

import itertools
import math
import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command_line import run_cli
from support.keeper_stub import KeptStub
from support.waiting import PATIENCE_S, eventually

from commitlogfs.mount.keeper import options as keeper_options
from commitlogfs.mount.keeper import policy
from commitlogfs.mount.keeper.descriptors import MAX_DESCRIPTORS, KeptDescriptors, is_name
from commitlogfs.mount.keeper.inbox import Inbox
from commitlogfs.mount.keeper.options import Options
from commitlogfs.mount.keeper.policy import Restarts
from commitlogfs.mount.keeper.spawn import spawn
from commitlogfs.mount.keeper.standby_call import SERVING
from commitlogfs.store.timing import DEFAULT

TIMING = DEFAULT.keeper


@pytest.fixture
def stub(workdir: Path) -> Iterator[KeptStub]:
    made = KeptStub(workdir)
    yield made
    made.end()
    assert not made.events("keeper_event_impossible")


# --- policy ----------------------------------------------------------------------------------------------


def nobody() -> bool:
    return False


def test_back_off_doubles_to_5_s_and_ends_after_ten_failures():
    restarts = Restarts(TIMING)
    delays = [restarts.delay_after(1, has_served=False, is_held=nobody) for _ in range(11)]
    assert delays == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0, None]


def test_a_mount_that_is_held_is_never_given_up():
    restarts = Restarts(TIMING)
    delays = [restarts.delay_after(1, has_served=False, is_held=lambda: True) for _ in range(1000)]
    assert set(delays[10:]) == {TIMING.longest_delay_s}
    assert restarts.is_hopeless
    assert restarts.delay_after(1, has_served=False, is_held=nobody) is None


def test_a_daemon_that_has_served_is_replaced_at_once():
    restarts = Restarts(TIMING)
    for status in (-9, 1, 75, 4, None):
        assert restarts.delay_after(status, has_served=True, is_held=nobody) == 0.0


def test_a_daemon_that_serves_ends_the_row_of_failures():
    restarts = Restarts(TIMING)
    for _ in range(3):
        for _ in range(10):
            assert restarts.delay_after(-11, has_served=False, is_held=nobody) is not None
        restarts.record_served()
    assert restarts.delay_after(-11, has_served=False, is_held=nobody) == TIMING.first_delay_s


@pytest.mark.parametrize("status", [2, 4])
def test_a_refusing_successor_is_waited_out_for_ever(status: int):
    restarts = Restarts(TIMING)
    delays = {restarts.delay_after(status, has_served=False, is_held=nobody) for _ in range(100)}
    assert delays == {TIMING.refused_delay_s}


@pytest.mark.parametrize(
    ("silent", "starved", "late", "more"),
    [
        (3.0, 0.0, 0.0, 0.0),
        (3.0, 0.29, 0.29, 0.0),
        (3.0, 0.4, 0.0, 0.4),
        (3.0, 2.0, 0.0, 2.0),
        (3.0, math.inf, 0.0, 3.0),
        (13.0, 0.0, 10.0, 3.0),
        (30.0, math.inf, 10.0, 0.0),
    ],
)
def test_waiting_for_a_processor_is_not_silence(silent: float, starved: float, late: float, more: float):
    patience_s = policy.patience(
        silent_s=silent, starved_s=starved, late_s=late, interval_s=3.0, longest_s=TIMING.silence_s
    )
    assert patience_s == more


# --- options ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        Options("a", "/m", ("x",)),
        Options("a", "/m p", ("x", "--", "--name", "y"), 2.5, 30, 7, None),
        Options("a", "/m", ("x",), 0, 10, None, 4711),
    ],
)
def test_options_survive_the_command_line(options: Options):
    assert keeper_options.parse(options.command_line()[4:]) == options


def test_a_keeper_without_a_command_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        keeper_options.parse(["--name", "a", "--mountpoint", "/m", "--"])
    assert "no command" in capsys.readouterr().err


# --- descriptors -----------------------------------------------------------------------------------------


def test_descriptors_are_kept_by_name_and_dropped_together():
    kept = KeptDescriptors()
    reader, writer = os.pipe()
    assert kept.keep("a", [os.dup(writer)])
    assert kept.keep("b", [os.dup(writer)])
    assert kept.keep("a", [writer])
    assert [name for name, _ in kept.items()] == ["a", "b", "a"]
    assert all(not os.get_inheritable(fd) for _, fd in kept.items())
    assert kept.drop("a") == 2
    assert kept.drop("a") == 0
    os.set_blocking(reader, False)
    with pytest.raises(BlockingIOError):  # one writer is left
        os.read(reader, 1)
    kept.close()
    assert len(kept) == 0
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_too_many_descriptors_or_a_bad_name_are_refused():
    kept = KeptDescriptors()
    reader, writer = os.pipe()
    assert not kept.keep("a:b", [os.dup(writer)])
    assert kept.keep("a", [os.dup(reader) for _ in range(MAX_DESCRIPTORS)])
    assert not kept.keep("a", [writer])
    assert os.read(reader, 1) == b""
    kept.close()
    os.close(reader)


@pytest.mark.parametrize("name", ["", "a:b", "a\nb", "é", "x" * 256])
def test_names_that_the_environment_cannot_carry(name: str):
    assert not is_name(name)


# --- inbox -----------------------------------------------------------------------------------------------


@pytest.fixture
def inbox(workdir: Path) -> Iterator[Inbox]:
    made = Inbox(workdir / "n")
    yield made
    made.close()


def _send(inbox: Inbox, text: bytes, fds: list[int] | None = None) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(str(inbox.path))
        socket.send_fds(sender, [text], fds or [])


def test_the_inbox_is_private_and_goes_away(workdir: Path):
    inbox = Inbox(workdir / "n")
    assert stat.S_IMODE(inbox.path.stat().st_mode) == 0o600
    inbox.close()
    assert not inbox.path.exists()


def test_a_message_tells_its_sender_fields_and_descriptors(inbox: Inbox):
    reader, writer = os.pipe()
    _send(inbox, b"FDSTORE=1\nFDNAME=a=b\nnonsense\n", [reader, writer])
    (message,) = inbox.receive()
    assert message.pid == os.getpid()
    assert message.fields == {"FDSTORE": "1", "FDNAME": "a=b"}
    assert [os.fstat(fd).st_ino for fd in message.fds] == [os.fstat(reader).st_ino] * 2
    assert not any(os.get_inheritable(fd) for fd in message.fds)
    os.close(reader)
    os.close(writer)
    message.close()
    assert list(inbox.receive()) == []


def test_a_too_long_message_is_dropped_with_its_descriptors(inbox: Inbox):
    reader, writer = os.pipe()
    _send(inbox, b"READY=1\n" + b"x" * 10_000, [writer])
    _send(inbox, b"READY=1")
    os.close(writer)
    assert [message.fields for message in inbox.receive()] == [{"READY": "1"}]
    assert os.read(reader, 1) == b""
    os.close(reader)


# --- spawn -----------------------------------------------------------------------------------------------


def test_a_spawned_process_has_its_pid_and_nothing_else_open(workdir: Path, monkeypatch: pytest.MonkeyPatch):
    for variable in ("LISTEN_FDS", "LISTEN_PID", "WATCHDOG_USEC", "NOTIFY_SOCKET", "MAINPID"):
        monkeypatch.setenv(variable, "7")
    passed_on = {fd for fd in os.listdir("/proc/self/fd") if int(fd) > 5 and _is_inheritable(int(fd))}
    stray = os.open(workdir, os.O_RDONLY)
    files = [os.open(workdir / name, os.O_CREAT | os.O_RDWR) for name in "ab"]
    # The numbers that the copies get are taken here, and in the wrong order.
    descriptors = [("a", files[1]), ("b", files[0])]
    script = "import os; print(os.getpid(), os.getsid(0), dict(os.environ)); print(os.listdir('/proc/self/fd'))"
    script += "; print([os.readlink(f'/proc/self/fd/{fd}') for fd in (0, 3, 4)])"
    with (workdir / "out").open("wb") as out:
        saved = os.dup(1)
        os.dup2(out.fileno(), 1)
        try:
            pid = spawn([sys.executable, "-S", "-c", script], {"X": "1"}, descriptors)
        finally:
            os.dup2(saved, 1)
            os.close(saved)
    assert os.waitpid(pid, 0)[1] == 0
    first, fds, links = (workdir / "out").read_text().splitlines()
    own, session, environment = first.split(" ", 2)
    assert int(own) == int(session) == pid
    told = eval(environment)  # noqa: S307 - a dict that our own child has printed
    assert told["LISTEN_PID"] == told["WATCHDOG_PID"] == str(pid)
    assert (told["LISTEN_FDS"], told["LISTEN_FDNAMES"], told["X"]) == ("2", "a:b", "1")
    assert not {"WATCHDOG_USEC", "NOTIFY_SOCKET", "MAINPID"} & told.keys()
    # 5 is the listing itself; what this run was started with and lets everybody inherit is none of ours.
    assert set(eval(fds)) - passed_on == {"0", "1", "2", "3", "4", "5"}  # noqa: S307
    assert eval(links) == ["/dev/null", str(workdir / "b"), str(workdir / "a")]  # noqa: S307
    for fd in (stray, *files):
        os.close(fd)


def _is_inheritable(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:  # of the listing
        return False


def test_an_inherited_descriptor_must_not_be_in_the_way():
    with pytest.raises(ValueError, match="overwritten"):
        spawn(["true"], {}, [("a", 0)], inherited=3)


# --- starting --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [1, 2, 4, 75, 77])
def test_a_daemon_that_is_never_ready_gives_its_exit_status(stub: KeptStub, status: int):
    stub.plan(f"exit:{status}")
    stub.start()
    assert stub.wait() == status
    assert len(stub.runs()) == 1
    assert not (stub.runtime / "stub.note").exists()


def test_a_daemon_killed_at_its_start_gives_the_shells_status(stub: KeptStub):
    stub.plan("crash")
    stub.start()
    assert stub.wait() == 128 + signal.SIGKILL


def test_the_first_daemons_report_passes_through(stub: KeptStub):
    near, far = os.pipe()
    stub.plan("report:ready exit:3")
    stub.start(report_fd=far)
    os.close(far)
    with os.fdopen(near, "rb") as reports:
        assert reports.read() == b"ready"
    assert stub.wait() == 3


def test_the_report_of_a_silent_daemon_ends_with_it(stub: KeptStub):
    near, far = os.pipe()
    stub.plan("exit:4")
    stub.start(report_fd=far)
    os.close(far)
    with os.fdopen(near, "rb") as reports:
        assert reports.read() == b""
    assert stub.wait() == 4


def test_a_keeper_that_cannot_start_reports_it_itself(stub: KeptStub):
    stub.name = "x" * 64
    stub.environment["COMMITLOGFS_RUNTIME_DIR"] = str(stub.directory / ("y" * 60))
    near, far = os.pipe()
    stub.start(report_fd=far)
    os.close(far)
    with os.fdopen(near, "rb") as reports:
        report = reports.read().decode()
    assert report.startswith("2 ")
    assert "too long for a socket" in report
    assert stub.wait() == 2
    assert not stub.runs()


def await_messages_read(stub: KeptStub) -> None:
    """Until the keeper has read all messages and signals that were sent before. Its socket is read after its
    signals: what it reports about this message, it reports after them."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"STATUS=x", str(stub.runtime / "stub.note"))
    eventually(lambda: stub.events("foreign_message"))


@pytest.mark.mounted
@pytest.mark.root
class TestWithMount:
    def test_a_daemon_finds_what_systemd_would_give_it(self, stub: KeptStub):
        stub.watchdog_s = 5.0
        stub.start()
        first = stub.wait_ready()
        environment = first["environment"]
        assert environment["WATCHDOG_USEC"] == "5000000"
        assert environment["WATCHDOG_PID"] == str(first["pid"])
        assert environment["NOTIFY_SOCKET"] == str(stub.runtime / "stub.note")
        assert "LISTEN_FDS" not in environment
        assert first["keeper"] == stub.keeper.pid
        assert first["cwd"] == "/"
        os.kill(first["pid"], signal.SIGKILL)
        second = stub.wait_ready(2)
        environment = second["environment"]
        assert environment["LISTEN_PID"] == str(second["pid"]) != str(first["pid"])
        assert (environment["LISTEN_FDS"], environment["LISTEN_FDNAMES"]) == ("1", "fuse")
        assert second["fds"]["3"] == "/dev/fuse"

    def test_nothing_but_the_stored_descriptors_reaches_a_daemon(self, stub: KeptStub):
        strays = [os.open(stub.directory, os.O_RDONLY) for _ in range(20)]
        stub.start()
        first = stub.wait_ready()
        os.kill(first["pid"], signal.SIGKILL)
        second = stub.wait_ready(2)
        for fd in strays:
            os.close(fd)
        log = str(stub.directory / "log")
        assert first["fds"] == {"0": "/dev/null", "1": log, "2": log}
        assert second["fds"] == {"0": "/dev/null", "1": log, "2": log, "3": "/dev/fuse"}

    def test_what_the_keeper_s_own_parent_left_open_is_closed(self, stub: KeptStub):
        script = f'exec 7<{stub.directory}; exec "$@"'
        stub.mountpoint.mkdir()
        line = Options("stub", str(stub.mountpoint), tuple(stub.command()), 0.0).command_line()
        with (stub.directory / "log").open("ab") as log:
            stub.keeper = subprocess.Popen(
                ["bash", "-c", script, "bash", *line],
                stderr=log,
                env=stub.env,
            )
        stub.wait_ready()
        held = {os.readlink(f"/proc/{stub.keeper.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{stub.keeper.pid}/fd")}
        assert str(stub.directory) not in held
        assert os.readlink(f"/proc/{stub.keeper.pid}/cwd") == "/"
        assert str(stub.directory) not in stub.runs()[0]["fds"].values()

    @pytest.mark.full
    def test_two_keepers_of_one_name(self, stub: KeptStub):
        stub.start()
        stub.wait_ready()
        line = Options("stub", str(stub.mountpoint), ("true",), 0.0).command_line()
        second = subprocess.run(line, env=stub.env, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
        assert second.returncode == 4
        assert "its keeper is running already" in second.stderr
        os.kill(stub.runs()[-1]["pid"], signal.SIGKILL)  # its socket still works
        stub.wait_ready(2)

    # --- replacing ---------------------------------------------------------------------------------------

    def test_twenty_kills_in_a_row(self, stub: KeptStub):
        stub.start()
        stub.wait_ready()
        (mount,) = stub.mounts()
        pids = set()
        for count in range(1, 21):
            run = stub.wait_ready(count)
            pids.add(run["pid"])
            os.kill(run["pid"], signal.SIGKILL)
        last = stub.wait_ready(21)
        assert len(pids) == 20
        assert last["pid"] not in pids
        assert stub.mounts() == [mount]
        assert stub.keeper.poll() is None
        assert len(stub.events("daemon_died")) == 20
        held = os.listdir(f"/proc/{stub.keeper.pid}/fd")
        assert len(held) < 12

    def test_after_a_hand_over_the_next_daemon_starts_at_once(self, stub: KeptStub):
        stub.plan("mount store ready exit:75")
        stub.start()
        stub.wait_ready(2)
        assert len(stub.events("daemon_handed_over")) == 1
        assert not stub.events("daemon_died")

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGRTMIN + 3])
    def test_any_signal_may_end_a_daemon(self, stub: KeptStub, number: int):
        stub.start()
        os.kill(stub.wait_ready()["pid"], number)
        stub.wait_ready(2)
        (line,) = stub.events("daemon_died")
        assert ("how=SIGKILL" if number == signal.SIGKILL else f'how="signal {number}"') in line

    def test_a_parent_that_ignores_the_ends_of_children(self, stub: KeptStub):
        stub.launcher = ("sh", "-c", 'trap "" CHLD; exec "$@"', "sh")
        stub.start(standby=True)
        os.kill(stub.wait_ready()["pid"], signal.SIGKILL)
        os.kill(stub.wait_ready(2)["pid"], signal.SIGKILL)
        stub.wait_ready(3)
        assert stub.keeper.poll() is None

    def test_back_off_while_successors_do_not_get_ready(self, stub: KeptStub):
        stub.plan("mount store ready exit:1", *["exit:1"] * 4)
        stub.start()
        stub.wait_ready(2)
        times = [run["time"] for run in stub.runs()]
        gaps = [after - before for before, after in itertools.pairwise(times)]
        assert len(gaps) == 5
        for gap, least in zip(gaps, (0.0, 0.05, 0.1, 0.2, 0.4), strict=True):
            assert gap >= least
        failures = stub.events("successor_failed")
        assert [line.split("next_start_s=")[1].split()[0] for line in failures] == ["0.05", "0.1", "0.2", "0.4"]

    @pytest.mark.full
    def test_a_crash_loop_gives_up_and_uncovers_the_bare_directory(self, stub: KeptStub):
        stub.mountpoint.mkdir()
        (stub.mountpoint / "GUARD").touch()
        stub.plan("mount store ready exit:1", *["exit:1"] * 11)
        stub.start()
        most = 0
        while stub.keeper.poll() is None:
            most = max(most, len(stub.mounts()))
            time.sleep(0.05)
        assert stub.wait(PATIENCE_S) == 1
        assert most == 1
        assert len(stub.runs()) == 12
        assert os.listdir(stub.mountpoint) == ["GUARD"]
        assert len(stub.events("keeper_gives_up")) == 1
        assert len(stub.events("keeper_detached")) == 1

    def test_a_daemon_that_has_answered_did_not_fail_to_start(self, stub: KeptStub):
        """Killed right after their first answer, before they are READY: more in a row than may fail."""
        stub.plan("mount store ready crash", *[f"say:{SERVING}=1 crash"] * 30)
        stub.start()
        stub.wait_ready(2)
        assert len(stub.runs()) == 32
        assert len(stub.events("daemon_died")) == 31
        assert not stub.events("successor_failed")

    def test_a_held_mount_is_not_given_up_until_it_is_let_go(self, stub: KeptStub):
        stub.hurry()
        stub.plan("mount store ready wait:held crash", *["exit:1"] * 500)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(str(stub.directory / "manager"))
            stub.environment["NOTIFY_SOCKET"] = str(stub.directory / "manager")
            stub.start()
            stub.wait_ready()
            held = os.open(stub.mountpoint, os.O_PATH)
            (stub.directory / "held").touch()
            eventually(lambda: len(stub.events("mount_held_without_daemon")) > 5)  # after 17 starts
            assert len(stub.mounts()) == 1
            assert stub.keeper.poll() is None
            said = [manager.recv(4096).decode() for _ in range(12)][-1]
        assert f"STATUS=no daemon serves {stub.mountpoint}: " in said
        ran = run_cli("status", "stub", env=stub.env)
        assert ran.status == 3
        assert f"stub: no daemon serves {stub.mountpoint}: " in ran.err
        assert "(the last: exit 1); see the daemon's log for the reason; next try in 0.1 s" in ran.err
        os.close(held)
        assert stub.wait() == 1
        assert stub.mounts() == []
        assert len(stub.events("keeper_gives_up")) == 1

    def test_a_keeper_that_cannot_start_anything_for_a_while(self, stub: KeptStub):
        stub.hurry()
        stub.start()
        run = stub.wait_ready()
        held = os.open(stub.mountpoint, os.O_PATH)
        soft, hard = resource.prlimit(stub.keeper.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(stub.keeper.pid, resource.RLIMIT_NOFILE, (20, hard))  # copies get higher numbers
        os.kill(run["pid"], signal.SIGKILL)
        eventually(lambda: len(stub.events("mount_held_without_daemon")) > 3)
        assert stub.events("daemon_not_started")
        resource.prlimit(stub.keeper.pid, resource.RLIMIT_NOFILE, (soft, hard))
        assert stub.wait_ready(2)["fds"]["3"] == "/dev/fuse"
        assert (
            "no daemon answers at this moment" in run_cli("status", "stub", env=stub.env).err
        )  # the stub has no socket
        os.close(held)

    @pytest.mark.full
    @pytest.mark.parametrize("status", [2, 4])
    def test_a_refusing_successor_keeps_the_mount(self, stub: KeptStub, status: int):
        stub.plan("mount store ready exit:1", f"exit:{status}")
        stub.start()
        eventually(lambda: stub.events("successor_refused"))
        assert len(stub.mounts()) == 1
        assert "next_start_s=5" in stub.events("successor_refused")[0]
        stub.wait_ready(2)
        assert stub.runs()[-1]["fds"]["3"] == "/dev/fuse"

    def test_exit_zero_ends_the_keeper(self, stub: KeptStub):
        stub.start()
        run = stub.wait_ready()
        os.kill(run["pid"], signal.SIGTERM)
        assert stub.wait() == 0
        assert stub.mounts() == []

    def test_a_stop_is_for_the_successor_of_a_daemon_that_hangs(self, stub: KeptStub):
        stub.watchdog_s = 1.0
        stub.start()
        os.kill(stub.wait_ready()["pid"], signal.SIGSTOP)
        stub.keeper.terminate()
        assert stub.wait() == 0
        assert stub.mounts() == []
        assert (stub.directory / "signals").read_text() == "SIGTERM\n"

    def test_a_stop_comes_with_the_end_of_a_daemon(self, stub: KeptStub):
        stub.start()
        run = stub.wait_ready()
        os.kill(stub.keeper.pid, signal.SIGSTOP)
        os.kill(run["pid"], signal.SIGKILL)
        stub.keeper.terminate()
        os.kill(stub.keeper.pid, signal.SIGCONT)
        assert stub.wait() == 0
        assert stub.mounts() == []

    @pytest.mark.parametrize("within_s", [PATIENCE_S, pytest.param(4.0, marks=pytest.mark.timing)])
    def test_a_stop_while_a_successor_starts_that_refuses(self, stub: KeptStub, within_s: float):
        stub.plan("mount store ready exit:1", "wait:go exit:4")
        stub.start()
        stub.wait_ready()
        eventually(lambda: len(stub.runs()) == 2)
        stub.keeper.terminate()
        await_messages_read(stub)
        (stub.directory / "go").touch()
        assert stub.wait(within_s) == 0  # before the next one, which would come 5 s later
        assert stub.mounts() == []
        assert len(stub.runs()) == 2

    def test_a_stop_that_was_refused_is_over(self, stub: KeptStub):
        """A mount in use stays; a death much later must not end it."""
        stub.plan("mount store handle ready wait:go say:WATCHDOG=1 barrier hang")
        stub.watchdog_s = 10 * PATIENCE_S
        stub.start()
        run = stub.wait_ready()
        (stub.directory / "busy").touch()
        stub.keeper.terminate()
        eventually(lambda: (stub.directory / "signals").exists())
        (stub.directory / "go").touch()
        eventually(lambda: (stub.directory / "barrier").exists())  # the keeper has read the sign of life
        os.kill(run["pid"], signal.SIGKILL)
        stub.wait_ready(2)
        time.sleep(0.5)  # an opportunity to send another one
        assert (stub.directory / "signals").read_text() == "SIGTERM\n"

    def test_an_aborted_connection_leaves_the_bare_directory(self, stub: KeptStub):
        """The daemon takes it for an unmount, for all that the dead mount is still there."""
        stub.plan("mount store ready exit:0")
        stub.start()
        assert stub.wait() == 0
        assert stub.mounts() == []
        assert stub.events("keeper_detached")

    @pytest.mark.full
    def test_no_daemon_starts_for_a_mount_that_ended_meanwhile(self, stub: KeptStub):
        stub.plan("mount store ready exit:1", "exit:4")
        stub.start()
        eventually(lambda: stub.events("successor_refused"))
        # Without access to the mountpoint, as `commitlogfs umount` does it: no daemon would answer.
        subprocess.run(["umount", "--no-canonicalize", str(stub.mountpoint)], check=True)
        assert stub.wait() == 0
        assert stub.events("unmounted_meanwhile")
        assert len(stub.runs()) == 2

    def test_a_daemon_killed_after_its_mount_ended_is_not_a_fault(self, stub: KeptStub):
        stub.plan("mount store ready hang")
        stub.start()
        run = stub.wait_ready()
        subprocess.run(["umount", "-l", str(stub.mountpoint)], check=True)
        os.kill(run["pid"], signal.SIGKILL)
        assert stub.wait() == 0
        assert len(stub.runs()) == 1

    def test_a_first_daemon_that_fails_leaves_no_mount(self, stub: KeptStub):
        stub.plan("mount store exit:9")
        stub.start()
        assert stub.wait() == 9
        assert stub.mounts() == []

    # --- protocol ----------------------------------------------------------------------------------------

    def test_messages_of_others_do_not_count(self, stub: KeptStub):
        stub.plan("mount store child:READY=1|FDSTOREREMOVE=1|FDNAME=fuse wait:go ready serve")
        stub.start()
        eventually(lambda: stub.events("foreign_message"))
        assert not stub.events("daemon_ready")
        (stub.directory / "go").touch()
        run = stub.wait_ready()
        address = str(stub.runtime / "stub.note")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"FDSTOREREMOVE=1\nFDNAME=fuse", address)
            sender.sendto(b"STOPPING=1", address)
        os.kill(run["pid"], signal.SIGKILL)
        assert stub.wait_ready(2)["fds"]["3"] == "/dev/fuse"

    def test_removed_descriptors_are_gone(self, stub: KeptStub):
        stub.plan("mount store:a store:b say:FDSTOREREMOVE=1|FDNAME=a ready exit:1")
        stub.start()
        assert stub.wait_ready(2)["environment"]["LISTEN_FDNAMES"] == "b"

    def test_a_barrier_is_answered_when_all_before_it_is_done(self, stub: KeptStub):
        stub.plan("mount store barrier ready serve")
        stub.start()
        stub.wait_ready()
        assert (stub.directory / "barrier").exists()

    def test_main_pid_and_nonsense_are_ignored(self, stub: KeptStub):
        stub.plan(
            "mount store say:MAINPID=1 say:EXTEND_TIMEOUT_USEC=x say:EXTEND_TIMEOUT_USEC="
            + "9" * 400
            + " say:FDSTORE=1|FDNAME=none say:= ready serve"
        )
        stub.start()
        stub.wait_ready()
        assert stub.keeper.poll() is None

    def test_the_keepers_own_manager_gets_its_state(self, stub: KeptStub):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(str(stub.directory / "manager"))
            manager.settimeout(PATIENCE_S)
            stub.environment["NOTIFY_SOCKET"] = str(stub.directory / "manager")
            stub.start()
            pid = stub.keeper.pid
            assert manager.recv(4096).decode() == f"READY=1\nSTATUS=serving\nMAINPID={pid}"
            stub.wait_ready()
            stub.keeper.send_signal(signal.SIGTERM)
            assert manager.recv(4096).decode() == f"STOPPING=1\nMAINPID={pid}"
            assert stub.wait() == 0

    # --- watchdog ----------------------------------------------------------------------------------------

    def test_a_stopped_daemon_is_killed_and_replaced(self, stub: KeptStub):
        stub.watchdog_s = 0.5
        stub.start()
        run = stub.wait_ready()
        os.kill(run["pid"], signal.SIGSTOP)
        assert stub.wait_ready(2)["pid"] != run["pid"]
        (died,) = stub.events("daemon_died")
        assert "how=SIGKILL" in died  # a stopped process does not see SIGABRT
        assert "state=ready" in stub.events("daemon_hung")[0]

    def test_a_daemon_that_forgets_the_watchdog_is_aborted(self, stub: KeptStub):
        stub.watchdog_s = 0.5
        stub.plan("mount store ready hang")
        stub.start()
        stub.wait_ready(2)
        assert "how=SIGABRT" in stub.events("daemon_died")[0]

    def test_a_hung_daemon_without_takeover_is_only_reported(self, stub: KeptStub):
        stub.watchdog_s = 0.5
        stub.plan("mount ready wait:go say:WATCHDOG=1 hang")
        stub.start()
        stub.wait_ready()
        eventually(lambda: stub.events("hung_daemon_without_takeover"))
        (stub.directory / "go").touch()
        eventually(lambda: stub.events("daemon_answers_again"))
        eventually(lambda: len(stub.events("hung_daemon_without_takeover")) == 2)
        assert stub.keeper.poll() is None
        assert not stub.events("daemon_hung")

    def test_no_watchdog(self, stub: KeptStub):
        stub.plan("mount store ready hang")
        stub.start()
        stub.wait_ready()
        assert "WATCHDOG_USEC" not in stub.runs()[0]["environment"]

    # --- signals -----------------------------------------------------------------------------------------

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_stop_signals_are_sent_to_the_daemon(self, stub: KeptStub, number: signal.Signals):
        stub.start()
        stub.wait_ready()
        stub.keeper.send_signal(number)
        assert stub.wait() == 0
        assert (stub.directory / "signals").read_text() == f"{number.name}\n"

    def test_sighup_is_sent_to_the_daemon_and_stops_nothing(self, stub: KeptStub):
        stub.start()
        run = stub.wait_ready()
        stub.keeper.send_signal(signal.SIGHUP)
        eventually(lambda: (stub.directory / "hung up").exists())
        os.kill(run["pid"], signal.SIGKILL)
        stub.wait_ready(2)
        assert len(stub.mounts()) == 1

    def test_a_daemon_may_decline_to_stop(self, stub: KeptStub):
        (stub.directory / "busy").touch()
        stub.start()
        run = stub.wait_ready()
        stub.keeper.send_signal(signal.SIGTERM)
        eventually(lambda: (stub.directory / "signals").exists())
        os.kill(run["pid"], signal.SIGKILL)
        stub.wait_ready(2)

    def test_a_stop_waits_for_a_successor_that_is_starting(self, stub: KeptStub):
        stub.plan("mount store ready exit:1", "handle wait:go ready serve")
        stub.start()
        eventually(lambda: len(stub.runs()) == 2)
        stub.keeper.send_signal(signal.SIGTERM)
        await_messages_read(stub)
        assert not (stub.directory / "signals").exists()
        (stub.directory / "go").touch()
        assert stub.wait() == 0
        assert len(stub.runs()) == 2
        assert (stub.directory / "signals").read_text() == "SIGTERM\n"

    def test_a_stop_between_two_daemons_unmounts_plainly(self, stub: KeptStub):
        stub.plan("mount store ready exit:1", "exit:4")
        stub.start()
        eventually(lambda: stub.events("successor_refused"))
        stub.keeper.send_signal(signal.SIGTERM)
        assert stub.wait() == 0
        assert stub.mounts() == []

    # --- death of the keeper -----------------------------------------------------------------------------

    def test_a_killed_keeper_is_replaced_by_its_daemon(self, stub: KeptStub):
        stub.watchdog_s = 0.0
        stub.plan("mount store ready adoptable")
        stub.start()
        run = stub.wait_ready()
        stub.keeper.kill()
        stub.keeper.wait()
        eventually(lambda: stub.events("daemon_adopted"))
        assert f"pid={run['pid']} descriptors=1" in stub.events("daemon_adopted")[0]
        os.kill(run["pid"], signal.SIGKILL)
        second = stub.wait_ready(2)
        assert second["fds"]["3"] == "/dev/fuse"
        assert second["keeper"] != run["keeper"]
        assert len(stub.mounts()) == 1
        assert "how=unknown" in stub.events("daemon_died")[0]

    def test_a_keeper_killed_twice(self, stub: KeptStub):
        stub.plan("mount store ready adoptable")
        stub.start()
        stub.wait_ready()
        stub.keeper.kill()
        stub.keeper.wait()
        eventually(lambda: stub.events("daemon_adopted"))
        (started,) = stub.events("keeper_started")
        os.kill(int(started.rpartition("pid=")[2]), signal.SIGKILL)
        eventually(lambda: len(stub.events("daemon_adopted")) == 2)

    def test_resident_memory(self, stub: KeptStub):
        stub.start()
        stub.wait_ready()
        status = Path(f"/proc/{stub.keeper.pid}/status").read_text()
        resident_kib = int(status.split("VmRSS:")[1].split()[0])
        assert resident_kib < 24 * 1024
        maps = Path(f"/proc/{stub.keeper.pid}/maps").read_text()
        assert "pyfuse3" not in maps
