"""Producers and consumers: typed wrappers around the Java helper."""

import json
import os
import select
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from commitlogfs.bench.rocketmq.artifacts import Distribution
from commitlogfs.bench.rocketmq.errors import WorkloadFailedError
from commitlogfs.bench.rocketmq.process import java_command

CLIENT_JVM = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC")
_STOP_DEADLINE_S = 120.0


class AckedMessage(NamedTuple):
    """One message the broker acknowledged with SEND_OK."""

    sequence: int
    offset_msg_id: str
    queue_id: int
    queue_offset: int


class ReceivedMessage(NamedTuple):
    """One message as consumed; sequence -1 when its body is not what was sent."""

    sequence: int
    queue_id: int
    queue_offset: int
    log_offset: int
    store_bytes: int
    offset_msg_id: str


@dataclass(frozen=True)
class SendResult:
    """`sent` were acknowledged; `failed` counts attempts, `abandoned` messages never acknowledged."""

    sent: int
    failed: int
    abandoned: int
    seconds: float
    latency_p50_ms: float
    latency_p99_ms: float
    latency_max_ms: float
    last_error: str
    acked: Path | None

    @property
    def messages_per_s(self) -> float:
        return self.sent / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class FirstMessage:
    """The received message with the lowest log offset; `msg_id` is the producer's UNIQ_KEY."""

    log_offset: int
    store_bytes: int
    offset_msg_id: str
    msg_id: str


@dataclass(frozen=True)
class ConsumeResult:
    """`distinct` good messages; `skipped`: queue offsets the broker jumped over after each queue's first."""

    distinct: int
    duplicates: int
    corrupted: int
    skipped: int
    pull_errors: int
    body_bytes: int
    lowest: int
    highest: int
    seconds: float
    first: FirstMessage | None
    last_error: str

    @property
    def messages_per_s(self) -> float:
        return (self.distinct + self.duplicates) / self.seconds if self.seconds else 0.0


class Sender:
    """A producer in the background until `stop`; as a context manager, killed at the end if still there.

    It keeps sending, and retries each message, while the broker is down. Killing it loses no line of `acked`.
    """

    def __init__(self, command: list[str], acked: Path | None) -> None:
        self.acked = acked
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the sender
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    def stop(self, timeout_s: float = _STOP_DEADLINE_S) -> SendResult:
        """Let the messages in flight end and return the totals; raises WorkloadFailedError if it failed."""
        return self._finish(timeout_s)

    def wait(self, timeout_s: float) -> SendResult:
        """Totals once a sender with `count` or `duration_s` ended by itself."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise WorkloadFailedError(f"the sender still runs after {timeout_s:g} s") from None
        return self._finish(timeout_s)

    def kill(self) -> None:
        """Kill and wait: for tests of acknowledged messages."""
        self._process.kill()
        self._process.communicate()
        self._stderr.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._stderr.closed:
            self.kill()

    def _finish(self, timeout_s: float) -> SendResult:
        try:
            out, _ = self._process.communicate(timeout=timeout_s)  # closes stdin, which ends the run
        except subprocess.TimeoutExpired:
            self.kill()
            raise WorkloadFailedError(f"the sender did not end in {timeout_s:g} s") from None
        self._stderr.seek(0)
        err = self._stderr.read().decode(errors="replace")
        self._stderr.close()
        return _send_result(_last_result("send", out, err, self._process.returncode), self.acked)


class BatchSender:
    """A producer that sends a batch of messages whenever it is asked to, and stays warm between two; killed at the
    end of the block."""

    def __init__(
        self, distribution: Distribution, name_server: str, topic: str, *, size_bytes: int, threads: int
    ) -> None:
        command = _helper(distribution, "send", name_server, topic)
        command += ["--size", str(size_bytes), "--threads", str(threads), "--batches"]
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the sender
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,
            bufsize=0,
        )
        self._unread = b""

    def send(self, count: int, timeout_s: float = 300.0) -> SendResult:
        """Send `count` messages. WorkloadFailedError unless all were acknowledged in time."""
        assert self._process.stdin is not None
        deadline = time.monotonic() + timeout_s
        try:
            self._process.stdin.write(f"{count}\n".encode())
        except BrokenPipeError:
            raise WorkloadFailedError(f"the sender has ended:\n{self._errors()}") from None
        while not (line := self._next_line(deadline)).startswith(b'{"event":"result"'):
            pass
        result = _send_result(json.loads(line), None)
        if result.sent != count:
            raise WorkloadFailedError(f"{result.sent} of {count} messages were acknowledged: {result.last_error}")
        return result

    def _next_line(self, deadline: float) -> bytes:
        assert self._process.stdout is not None
        while b"\n" not in self._unread:
            if not select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise WorkloadFailedError("the sender has not sent a batch in time")
            part = os.read(self._process.stdout.fileno(), 65536)
            if not part:
                raise WorkloadFailedError(f"the sender has ended:\n{self._errors()}")
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _errors(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace")[-2000:]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._stderr):
            if pipe is not None:
                pipe.close()


def send(
    distribution: Distribution,
    name_server: str,
    topic: str,
    *,
    count: int | None = None,
    duration_s: float | None = None,
    size_bytes: int = 1024,
    threads: int = 4,
    start: int = 0,
    keys: bool = False,
    tags: str | None = None,
    rate: float | None = None,
    retry: bool = False,
    acked: Path | None = None,
    timeout_s: float = 300.0,
) -> SendResult:
    """Send messages numbered from `start`, `count` of them or for `duration_s`.

    `keys`: each has the key "key-N"; `tags`: comma list, message N takes number N modulo its length; `acked`:
    file that gets one line per acknowledgement. WorkloadFailedError unless all `count` were acknowledged.
    """
    if count is None and duration_s is None:
        raise ValueError("send needs count or duration_s")
    command = _send_command(
        distribution,
        name_server,
        topic,
        count,
        duration_s,
        size_bytes,
        threads,
        start,
        keys,
        tags,
        rate,
        retry,
        acked,
    )
    return _send_result(run_helper("send", command, timeout_s), acked)


def start_sender(
    distribution: Distribution,
    name_server: str,
    topic: str,
    *,
    count: int | None = None,
    duration_s: float | None = None,
    size_bytes: int = 1024,
    threads: int = 4,
    start: int = 0,
    keys: bool = False,
    tags: str | None = None,
    rate: float | None = None,
    acked: Path | None = None,
) -> Sender:
    """The same in the background, retrying; ends at `Sender.stop`, or before at `count` or `duration_s`."""
    command = _send_command(
        distribution,
        name_server,
        topic,
        count,
        duration_s,
        size_bytes,
        threads,
        start,
        keys,
        tags,
        rate,
        True,
        acked,
    )
    return Sender([*command, "--until-eof"], acked)


def consume(
    distribution: Distribution,
    name_server: str,
    topic: str,
    *,
    expect: int,
    group: str = "commitlogfs-consumer",
    idle_timeout_s: float = 10.0,
    received: Path | None = None,
    check: bool = True,
    timeout_s: float = 300.0,
) -> ConsumeResult:
    """Read every queue from its start until all are at their end and `expect` different messages came.

    Gives up after `idle_timeout_s` without a new message (0 expected: reads until then). With `check`,
    WorkloadFailedError unless all `expect` came and no body was corrupted. Commits no offsets: repeatable.
    """
    command = _helper(distribution, "consume", name_server, topic)
    command += ["--group", group, "--expect", str(expect), "--idle-timeout", str(idle_timeout_s)]
    if received is not None:
        command += ["--received", str(received)]
    fields = run_helper("consume", command, timeout_s, check=check)
    first = fields["first"]
    return ConsumeResult(
        distinct=fields["distinct"],
        duplicates=fields["duplicates"],
        corrupted=fields["corrupted"],
        skipped=fields["skipped"],
        pull_errors=fields["pull_errors"],
        body_bytes=fields["body_bytes"],
        lowest=fields["lowest"],
        highest=fields["highest"],
        seconds=fields["seconds"],
        first=first
        and FirstMessage(first["commit_log_offset"], first["store_size"], first["offset_msg_id"], first["msg_id"]),
        last_error=fields["last_error"],
    )


def read_acked(path: Path) -> list[AckedMessage]:
    """The acknowledgements in `path`; a last line cut short by a kill is left out."""
    return [AckedMessage(int(s), i, int(q), int(o)) for s, i, q, o in _rows(path)]


def read_received(path: Path) -> list[ReceivedMessage]:
    """The messages listed in `path`, per queue in queue order."""
    return [
        ReceivedMessage(int(s), int(q), int(o), int(log), int(size), i) for s, q, o, log, size, i in _rows(path)
    ]


def _rows(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def _helper(distribution: Distribution, verb: str, name_server: str, topic: str) -> list[str]:
    command = java_command(
        distribution, "commitlogfs.Workload", verb, jvm=CLIENT_JVM, user_home=distribution.helper
    )
    return [*command, "--namesrv", name_server, "--topic", topic]


def _send_command(
    distribution: Distribution,
    name_server: str,
    topic: str,
    count: int | None,
    duration_s: float | None,
    size_bytes: int,
    threads: int,
    start: int,
    keys: bool,
    tags: str | None,
    rate: float | None,
    retry: bool,
    acked: Path | None,
) -> list[str]:
    command = _helper(distribution, "send", name_server, topic)
    values = {
        "count": count,
        "duration": duration_s,
        "size": size_bytes,
        "threads": threads,
        "start": start,
        "tags": tags,
        "rate": rate,
        "acked": acked,
    }
    for name, value in values.items():
        if value is not None:
            command += [f"--{name}", str(value)]
    command += [f"--{name}" for name, wanted in (("keys", keys), ("retry", retry)) if wanted]
    return command


def _send_result(fields: dict[str, Any], acked: Path | None) -> SendResult:
    return SendResult(
        sent=fields["acked"],
        failed=fields["failed"],
        abandoned=fields["abandoned"],
        seconds=fields["seconds"],
        latency_p50_ms=fields["p50_ms"],
        latency_p99_ms=fields["p99_ms"],
        latency_max_ms=fields["max_ms"],
        last_error=fields["last_error"],
        acked=acked,
    )


def run_helper(verb: str, command: list[str], timeout_s: float, *, check: bool = True) -> dict[str, Any]:
    """The result of one run of the Java helper; WorkloadFailedError without one or, with `check`, for a bad one."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise WorkloadFailedError(f"{verb} took more than {timeout_s:g} s") from None
    return _last_result(verb, done.stdout, done.stderr, done.returncode, check=check)


def _last_result(verb: str, out: str, err: str, returncode: int, *, check: bool = True) -> dict[str, Any]:
    """The final JSON line; the client library prints other lines."""
    results = [line for line in out.splitlines() if line.startswith('{"event":"result"')]
    if not results or (check and returncode != 0):
        shown = results[-1] if results else out[-500:]
        raise WorkloadFailedError(f"{verb} exited with {returncode}: {shown}\n{err[-2000:]}")
    fields: dict[str, Any] = json.loads(results[-1])
    return fields
