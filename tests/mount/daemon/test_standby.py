"""A daemon stands by for the present one's end: called when that dies, never in its way, never older than the code
that is installed."""

import array
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.keeper_stub import KeptStub
from support.processes import has_ended
from support.waiting import PATIENCE_S, eventually

from commitlogfs.console.exit_status import ExitCode
from commitlogfs.mount.daemon import successor
from commitlogfs.mount.keeper import standby_call
from commitlogfs.mount.keeper.standby_call import STANDBY_OPTION, BrokenCallError, Call
from commitlogfs.store.timing import DEFAULT

SUCCEEDED_WITHIN_S = 10.0
"""Time until another daemon serves if the standby does not run; the keeper waits longer for a slow start."""


@pytest.fixture
def stub(workdir: Path) -> Iterator[KeptStub]:
    made = KeptStub(workdir)
    yield made
    made.end()


# --- the call --------------------------------------------------------------------------------------------


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    keepers, daemons = standby_call.channel()
    with keepers, daemons:
        yield keepers, daemons


def test_a_call_brings_variables_and_copies_of_descriptors(ends: tuple[socket.socket, socket.socket]) -> None:
    keepers, daemons = ends
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as file:
        standby_call.send(keepers, Call({"A": "ü\udcff\n"}, [("x", writer), ("x", reader)]))
        os.close(writer)
        call = standby_call.receive(daemons)
        assert call is not None
        assert call.variables == {"A": "ü\udcff\n"}
        (first, copy), (second, other) = call.descriptors
        assert (first, second) == ("x", "x")
        assert not os.get_inheritable(copy)
        os.write(copy, b"through")
        os.close(copy)
        assert file.read() == b"through"
        os.close(other)


def test_a_keeper_that_has_ended_makes_no_call(ends: tuple[socket.socket, socket.socket]) -> None:
    keepers, daemons = ends
    keepers.close()
    assert standby_call.receive(daemons) is None


def test_a_keeper_may_call_before_it_reads_that_the_standby_is_loaded(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """The kernel then reports a reset connection before it gives out the call: once in some hundreds of deaths, the
    standby took that for the end of its keeper, and ended, and the keeper took that for the end of the mount."""
    keepers, daemons = ends
    standby_call.report_loaded(daemons)
    standby_call.send(keepers, Call({"A": "b"}, []))
    keepers.close()
    call = standby_call.receive(daemons)
    assert call is not None
    assert call.variables == {"A": "b"}
    assert standby_call.receive(daemons) is None


class _EndSeenEarly(socket.socket):
    """The daemon's end of a channel. Within the first read, a keeper calls and closes its end: after the kernel has
    checked the queue, and before it checks the connection. That read reports the end, with the call in the queue.

    The kernel alone does so in about one of a million calls that meet the read (`__skb_wait_for_more_packets`).
    """

    caller: Callable[[], None] | None = None

    def recvmsg(
        self, bufsize: int, ancbufsize: int = 0, flags: int = 0, /
    ) -> tuple[bytes, list[tuple[int, int, bytes]], int, Any]:
        caller, self.caller = self.caller, None
        if caller is None:
            return super().recvmsg(bufsize, ancbufsize, flags)
        caller()
        return b"", [], 0, None


@pytest.mark.parametrize("loaded", [False, True])
def test_a_call_counts_although_its_end_is_reported_first(
    ends: tuple[socket.socket, socket.socket], loaded: bool
) -> None:
    """The standby ended with status 0 and without a line in the log, although it had been called."""
    keepers, daemons = ends

    def call() -> None:
        standby_call.send(keepers, Call({"A": "b"}, []))
        keepers.close()

    with _EndSeenEarly(fileno=daemons.detach()) as channel:
        channel.caller = call
        if loaded:
            standby_call.report_loaded(channel)
        received = standby_call.receive(channel)
        assert received is not None
        assert received.variables == {"A": "b"}
        assert standby_call.receive(channel) is None


def test_half_a_call_is_an_error(ends: tuple[socket.socket, socket.socket]) -> None:
    """Fewer descriptors than names: one of them would be taken for another."""
    keepers, daemons = ends
    reader, writer = os.pipe()
    text = json.dumps({"variables": {}, "names": ["a", "b"]}).encode()
    keepers.sendmsg([text], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [writer]))])
    os.close(writer)
    with pytest.raises(BrokenCallError):
        standby_call.receive(daemons)
    with os.fdopen(reader, "rb") as file:
        assert file.read() == b""  # no copy is left open


def test_more_than_a_message_takes_is_an_error_of_the_caller(ends: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(OSError, match="too long"):
        standby_call.send(ends[0], Call({"A": "x" * (1 << 23)}, []))


# --- having one loaded -----------------------------------------------------------------------------------


def test_without_a_keeper_nothing_is_prepared(monkeypatch: pytest.MonkeyPatch, workdir: Path) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert successor.prepare(DEFAULT.daemon.successor_s) is None
    monkeypatch.setenv("NOTIFY_SOCKET", str(workdir / "gone"))
    assert successor.prepare(DEFAULT.daemon.successor_s) is None


def test_a_manager_that_does_not_answer_prepares_nothing(monkeypatch: pytest.MonkeyPatch, workdir: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(workdir / "n"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(workdir / "n"))
        assert successor.prepare(0.05) is None  # the message waits in the queue, and with it the descriptor
        text, fds, _, _ = socket.recv_fds(manager, 4096, 4)
        assert text == b"X_COMMITLOGFS_PREPARE=1"
        for fd in fds:
            os.close(fd)


# --- code that is not what it was ------------------------------------------------------------------------

_WAITER = """
import os, sys
sys.path.insert(0, {directory!r})
import part
from commitlogfs.mount.daemon import standby
if {option!r} in sys.argv:
    print("imported", flush=True)
    sys.stdin.readline()
    received = standby.wait_until_called(int(sys.argv[sys.argv.index({option!r}) + 1]), 60.0)
    how = "called"
else:
    from commitlogfs.mount.linux.descriptor_store import take_received
    received, how = take_received(), "anew"
print(how, part.VALUE, os.getpid(), os.environ["TOLD"], sorted(received), sys.argv[1:], flush=True)
for name, fd in received.items():
    os.write(fd, name.encode())
"""


class Waiter:
    """A process that stands by, with code of its own."""

    def __init__(self, directory: Path) -> None:
        self.part = directory / "part.py"
        self.part.write_text("VALUE = 1\n")
        script = directory / "waiter.py"
        script.write_text(_WAITER.format(directory=str(directory), option=STANDBY_OPTION))
        # Younger than a tick of the clocks it could as well have been changed since.
        eventually(lambda: time.time_ns() - self.part.stat().st_ctime_ns > 100_000_000)
        self._channel, theirs = standby_call.channel()
        with theirs:
            command = [sys.executable, "-B", str(script), "one", STANDBY_OPTION, str(theirs.fileno()), "two"]
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        assert self._line() == "imported"

    def wait(self) -> None:
        """Let it stand by."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        eventually(lambda: standby_call.has_loaded(self._channel))

    def call(self) -> tuple[str, bytes]:
        """Its messages, and what comes through the descriptors that it got."""
        reader, writer = os.pipe()
        # Wherever it is open by then, there is no end before it ends.
        descriptors = [("b", writer), ("a", writer), ("c", writer)]
        standby_call.send(self._channel, Call({"TOLD": "now"}, descriptors))
        os.close(writer)
        with os.fdopen(reader, "rb") as file:
            return self._line(), file.read()

    def end(self) -> None:
        self._channel.close()
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@pytest.fixture
def waiter(workdir: Path) -> Iterator[Waiter]:
    made = Waiter(workdir)
    yield made
    made.end()


def test_the_standby_itself_becomes_the_daemon(waiter: Waiter) -> None:
    waiter.wait()
    said, came = waiter.call()
    assert said.startswith(f"called 1 {waiter.process.pid} now ['a', 'b', 'c'] ['one', '{STANDBY_OPTION}', ")
    assert came == b"bac"


@pytest.mark.parametrize("change", ["rewritten", "replaced", "same size and time", "while it was loaded"])
def test_after_an_upgrade_it_starts_anew_under_its_pid(waiter: Waiter, change: str) -> None:
    before = waiter.part.stat()
    if change != "while it was loaded":
        waiter.wait()
    if change == "rewritten":
        waiter.part.write_text("VALUE = 22\n")
    else:
        fresh = waiter.part.with_suffix(".new")
        fresh.write_text("VALUE = 2\n")
        if change == "same size and time":
            os.utime(fresh, ns=(before.st_atime_ns, before.st_mtime_ns))
        fresh.rename(waiter.part)
    if change == "while it was loaded":
        waiter.wait()
    value = 22 if change == "rewritten" else 2
    said, came = waiter.call()
    assert said == f"anew {value} {waiter.process.pid} now ['a', 'b', 'c'] ['one', 'two']"
    assert came == b"bac"


def test_a_standby_whose_code_was_removed_ends(waiter: Waiter) -> None:
    waiter.wait()
    waiter.part.unlink()
    assert waiter.call() == ("", b"")
    assert waiter.process.wait(PATIENCE_S) == 1


def test_without_its_keeper_it_ends(waiter: Waiter) -> None:
    waiter.wait()
    waiter._channel.close()
    assert waiter.process.wait(PATIENCE_S) == 0


_AUDITED = """
import sys
from commitlogfs.mount import serve
from prometheus_client import CollectorRegistry
from commitlogfs.mount.metrics.counts import Counts
opened = []
sys.addaudithook(lambda event, arguments: opened.append(arguments) if event in ("open", "import") else None)
Counts(CollectorRegistry(), "demo")
print(opened)
"""


def test_a_loaded_daemon_reads_no_file_for_its_metrics() -> None:
    """The version comes from a file among the installed packages, in a directory with hundreds of entries."""
    ran = subprocess.run([sys.executable, "-c", _AUDITED], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


# --- the keeper ------------------------------------------------------------------------------------------


def started(stub: KeptStub, number: int = -1) -> dict[str, str]:
    """The fields of the keeper's line of a start."""
    line = stub.events("daemon_started")[number]
    return dict(field.split("=", 1) for field in line.split() if "=" in field)


@pytest.mark.mounted
@pytest.mark.root
class TestWithMount:
    def test_the_standby_finds_what_a_fresh_daemon_would(self, stub: KeptStub) -> None:
        stub.watchdog_s = 5.0
        stub.start(standby=True)
        first = stub.wait_ready()
        waiting = stub.wait_standby()
        assert waiting not in {run["pid"] for run in stub.runs()}
        os.kill(first["pid"], signal.SIGKILL)
        second = stub.wait_ready(2)
        assert second["pid"] == waiting
        assert started(stub)["stood_by"] == "true"
        environment = second["environment"]
        assert environment["NOTIFY_SOCKET"] == str(stub.runtime / "stub.note")
        assert (environment["WATCHDOG_USEC"], environment["WATCHDOG_PID"]) == ("5000000", str(waiting))
        log = str(stub.directory / "log")
        assert sorted(second["fds"].values()) == sorted(["/dev/null", log, log, "/dev/fuse"])
        assert second["cwd"] == "/"
        assert stub.wait_standby(2) != waiting

    def test_again_and_again(self, stub: KeptStub) -> None:
        stub.start(standby=True)
        for number in range(1, 6):
            run = stub.wait_ready(number)
            waiting = stub.wait_standby(number)
            os.kill(run["pid"], signal.SIGKILL)
            assert stub.wait_ready(number + 1)["pid"] == waiting
        assert len(stub.mounts()) == 1
        self._no_zombies(stub)

    def test_a_daemon_that_dies_at_once_has_no_reserve_yet(self, stub: KeptStub) -> None:
        stub.plan("mount store ready crash")
        stub.start(standby=True)
        stub.wait_ready(2)
        assert started(stub)["stood_by"] == "false"
        assert stub.wait_standby() not in {run["pid"] for run in stub.runs()}

    def test_one_that_has_died_is_done_without(self, stub: KeptStub) -> None:
        stub.start(standby=True)
        first = stub.wait_ready()
        waiting = stub.wait_standby()
        os.kill(waiting, signal.SIGKILL)
        eventually(lambda: stub.events("standby_died"))
        os.kill(first["pid"], signal.SIGKILL)
        second = stub.wait_ready(2)
        assert started(stub)["stood_by"] == "false"
        assert stub.wait_standby(2) not in (waiting, second["pid"])
        self._no_zombies(stub)

    def test_a_standby_that_cannot_be_called_is_replaced(self, stub: KeptStub) -> None:
        stub.start(standby=True)
        first = stub.wait_ready()
        waiting = stub.wait_standby()
        resource.prlimit(waiting, resource.RLIMIT_NOFILE, (3, 3))  # no number is left for what it is handed
        os.kill(first["pid"], signal.SIGKILL)
        second = stub.wait_ready(2)
        assert second["pid"] not in (first["pid"], waiting)
        assert stub.events("successor_failed")
        assert len(stub.mounts()) == 1
        self._no_zombies(stub)

    @pytest.mark.full
    @pytest.mark.parametrize(
        "within_s",
        [
            pytest.param(PATIENCE_S, id="works"),
            pytest.param(SUCCEEDED_WITHIN_S, id="in_time", marks=pytest.mark.timing),
        ],
    )
    def test_one_that_does_not_run_is_not_waited_for(self, stub: KeptStub, within_s: float) -> None:
        stub.start(standby=True)
        first = stub.wait_ready()
        waiting = stub.wait_standby()
        os.kill(waiting, signal.SIGSTOP)
        os.kill(first["pid"], signal.SIGKILL)
        eventually(lambda: len(stub.events("daemon_ready")) == 2, within_s)
        second = stub.wait_ready(2)
        assert second["pid"] not in (first["pid"], waiting)
        assert stub.events("standby_not_heard")
        self._no_zombies(stub)

    @pytest.mark.timing
    def test_one_that_is_slow_is_waited_for(self, stub: KeptStub) -> None:
        """It is called while it still loads, and takes longer for that than it may be silent."""
        stub.start(standby=True)
        (stub.directory / "slow").write_text(f"{DEFAULT.keeper.called_s + 0.7}")
        first = stub.wait_ready()
        waiting = stub.wait_standby()
        os.kill(first["pid"], signal.SIGKILL)
        assert stub.wait_ready(2)["pid"] == waiting
        assert stub.events("daemon_slow")
        assert not stub.events("standby_not_heard")

    def test_both_die_at_once(self, stub: KeptStub) -> None:
        stub.start(standby=True)
        first = stub.wait_ready()
        waiting = stub.wait_standby()
        assert stub.keeper is not None
        os.kill(stub.keeper.pid, signal.SIGSTOP)
        os.kill(first["pid"], signal.SIGKILL)
        os.kill(waiting, signal.SIGKILL)
        os.kill(stub.keeper.pid, signal.SIGCONT)
        assert stub.wait_ready(2)["pid"] not in (first["pid"], waiting)
        self._no_zombies(stub)

    def test_a_successor_that_fails_is_followed_by_a_fresh_one(self, stub: KeptStub) -> None:
        stub.plan("mount store ready serve", "exit:1", "store ready serve")
        stub.start(standby=True)
        first = stub.wait_ready()
        waiting = stub.wait_standby()
        os.kill(first["pid"], signal.SIGKILL)
        third = stub.wait_ready(2)
        assert [run["pid"] for run in stub.runs()][1] == waiting
        assert third["pid"] not in (first["pid"], waiting)
        assert started(stub)["stood_by"] == "false"

    def test_restart_means_what_is_installed_now(self, stub: KeptStub) -> None:
        stub.plan(f"mount store ready wait:go exit:{ExitCode.HANDED_OVER.value}")
        stub.start(standby=True)
        stub.wait_ready()
        waiting = stub.wait_standby()
        (stub.directory / "go").touch()
        second = stub.wait_ready(2)
        assert second["pid"] != waiting
        assert started(stub)["stood_by"] == "false"
        eventually(lambda: has_ended(waiting))
        stub.wait_standby(2)
        self._no_zombies(stub)

    @pytest.mark.parametrize("fails", [False, True])
    def test_before_a_hand_over_the_next_standby_is_loaded(self, stub: KeptStub, fails: bool) -> None:
        stub.plan(f"mount store ready wait:go prepare exit:{ExitCode.HANDED_OVER.value}")
        stub.start(standby=True)
        stub.wait_ready()
        former = stub.wait_standby()
        if fails:
            (stub.directory / "broken").touch()
        (stub.directory / "go").touch()
        second = stub.wait_ready(2)
        renewed = stub.standbys()[1]
        assert (stub.directory / "prepared").read_text() == f"{not fails}\n"
        assert second["pid"] == renewed if not fails else second["pid"] not in stub.standbys()
        assert started(stub)["stood_by"] == str(not fails).lower()
        eventually(lambda: has_ended(former))
        self._no_zombies(stub)

    def test_without_standby_none_is_loaded_for_a_hand_over(self, stub: KeptStub) -> None:
        stub.plan(f"mount store ready prepare exit:{ExitCode.HANDED_OVER.value}")
        stub.start()
        stub.wait_ready(2)
        assert (stub.directory / "prepared").read_text() == "None\n"
        assert not stub.standbys()

    def test_asked_twice_the_last_one_counts(self, stub: KeptStub) -> None:
        stub.plan(f"mount store ready prepare prepare exit:{ExitCode.HANDED_OVER.value}")
        stub.start(standby=True)
        second = stub.wait_ready(2)
        assert (stub.directory / "prepared").read_text() == "True\nTrue\n"
        assert second["pid"] == stub.standbys()[-1]
        self._no_zombies(stub)

    def test_it_ends_with_the_mount(self, stub: KeptStub) -> None:
        stub.start(standby=True)
        stub.wait_ready()
        waiting = stub.wait_standby()
        assert stub.keeper is not None
        stub.keeper.terminate()
        assert stub.wait() == 0
        eventually(lambda: has_ended(waiting))

    def test_it_ends_with_its_keeper(self, stub: KeptStub) -> None:
        stub.start(standby=True)
        stub.wait_ready()
        waiting = stub.wait_standby()
        assert stub.keeper is not None
        stub.keeper.kill()
        eventually(lambda: has_ended(waiting))

    def test_a_keeper_that_adopts_has_one_too(self, stub: KeptStub) -> None:
        stub.plan("mount store ready adoptable")
        stub.start(standby=True)
        first = stub.wait_ready()
        stub.wait_standby()
        assert stub.keeper is not None
        stub.keeper.kill()
        stub.keeper.wait()
        eventually(lambda: stub.events("daemon_adopted"))
        waiting = stub.wait_standby(2)
        os.kill(first["pid"], signal.SIGKILL)
        assert stub.wait_ready(2)["pid"] == waiting

    def test_none_is_kept_where_none_is_wanted(self, stub: KeptStub) -> None:
        stub.start()
        first = stub.wait_ready()
        os.kill(first["pid"], signal.SIGKILL)
        stub.wait_ready(2)
        assert self._children(stub) == {stub.runs()[-1]["pid"]: "S"}
        assert not stub.standbys()

    def _no_zombies(self, stub: KeptStub) -> None:
        eventually(lambda: "Z" not in self._children(stub).values())

    def _children(self, stub: KeptStub) -> dict[Any, str]:
        assert stub.keeper is not None
        tasks = Path(f"/proc/{stub.keeper.pid}/task")
        pids = {int(pid) for task in tasks.iterdir() for pid in (task / "children").read_text().split()}
        return {pid: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids}
