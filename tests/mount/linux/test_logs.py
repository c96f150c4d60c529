import errno
import logging
import os
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.waiting import eventually

from commitlogfs.mount.linux import logs
from commitlogfs.store.events import log_event

LOGGER = logging.getLogger("test")


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines that are left are written, however busy the machine is."""
    monkeypatch.setattr(logs, "_DRAIN_TIMEOUT_S", 300.0)


class Clock:
    """The time of repeats. It stands still until the test moves it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        stopped = SimpleNamespace(monotonic=lambda: self.now_s, strftime=time.strftime, gmtime=time.gmtime)
        monkeypatch.setattr(logs, "time", stopped)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def pipe():
    """A pipe to log into, and what was logged so far."""
    near, far = os.pipe()

    def read_lines() -> list[str]:
        os.set_blocking(near, False)
        try:
            return os.read(near, 1 << 20).decode().splitlines()
        except BlockingIOError:
            return []

    yield far, read_lines
    os.close(near)
    os.close(far)


Pipe = tuple[int, Callable[[], list[str]]]


def _body(line: str) -> str:
    return line.split(" ", 2)[2]


def test_one_line_with_quoted_fields(pipe: Pipe):
    fd, read_lines = pipe
    with logs.logging_to(fd):
        log_event(
            LOGGER,
            logging.ERROR,
            "create_failed",
            disk="/d 1",
            errno=errno.ENOSPC,
            ok=True,
            none=None,
            s=0.25,
        )
    (line,) = read_lines()
    assert line.split(" ")[1] == "error"
    assert _body(line) == 'event=create_failed disk="/d 1" errno=28 ok=true s=0.25'


@pytest.mark.parametrize(
    ("level", "prefix"),
    [
        (logging.DEBUG, "<7>"),
        (logging.INFO, "<6>"),
        (logging.WARNING, "<4>"),
        (logging.ERROR, "<3>"),
        (50, "<2>"),
    ],
)
def test_the_journal_gets_priorities(pipe: Pipe, monkeypatch: pytest.MonkeyPatch, level: int, prefix: str):
    fd, read_lines = pipe
    state = os.fstat(fd)
    monkeypatch.setenv("JOURNAL_STREAM", f"{state.st_dev}:{state.st_ino}")
    with logs.logging_to(fd, level=logging.DEBUG):
        log_event(LOGGER, level, "mounted", disk="d1")
    assert read_lines() == [f"{prefix}event=mounted disk=d1"]


def test_another_stream_is_no_journal(pipe: Pipe, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JOURNAL_STREAM", "1:2")
    assert not logs.is_journal(pipe[0])
    monkeypatch.delenv("JOURNAL_STREAM")
    assert not logs.is_journal(pipe[0])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("", '""'),
        ("00000000001073741824", "00000000001073741824"),
        ("a=b", '"a=b"'),
        (b"\xff\x00\n", '"\\xff\\x00\\n"'),
        ('"\\', '"\\"\\\\"'),
        ("\u2028\u202e\x9b", '"\\u2028\\u202e\\x9b"'),
        ("\ud800", '"\\ud800"'),
        ("größe", '"größe"'),
        (None, "None"),
    ],
)
def test_hostile_values(value: object, text: str):
    assert logs.format_value(value) == text


@given(st.binary() | st.text())
def test_no_value_can_break_a_line_or_look_like_a_field(value: bytes | str):
    text = logs.format_value(value, max_length=10_000)
    assert text.isprintable()
    if not text.startswith('"'):
        assert " " not in text
        assert "=" not in text
        assert '"' not in text
    else:
        assert text.endswith('"')
        assert '"' not in text[1:-1].replace("\\\\", "").replace('\\"', "")
    text.encode()


def test_long_values_are_cut():
    assert len(logs.format_value("x" * 100_000)) < 2_100


def test_libraries_and_tracebacks_are_one_line_too(pipe: Pipe):
    fd, read_lines = pipe
    with logs.logging_to(fd):
        logging.getLogger("pyfuse3").warning("two\nlines %s", b"\n")
        try:
            int("bad\nnumber")
        except ValueError as error:
            log_event(LOGGER, logging.ERROR, "unexpected_error", op="lookup", exc_info=error)
    first, second = read_lines()
    assert _body(first) == "event=message logger=pyfuse3 text=\"two\\nlines b'\\\\n'\""
    assert _body(second).startswith("event=unexpected_error op=lookup traceback=")
    assert "ValueError" in second


def test_repeats_are_held_back_and_counted(pipe: Pipe, clock: Clock):
    fd, read_lines = pipe
    with logs.logging_to(fd, repeat_interval_s=0.1):
        for _ in range(5):
            log_event(LOGGER, logging.ERROR, "create_failed", disk="d1", errno=28, seconds=time.time())
        log_event(LOGGER, logging.ERROR, "create_failed", disk="d2", errno=28)
        clock.now_s += 0.15
        log_event(LOGGER, logging.ERROR, "create_failed", disk="d1", errno=28)
        lines: list[str] = []

        def all_written() -> bool:
            lines.extend(read_lines())
            return len(lines) >= 3

        eventually(all_written)
        bodies = [_body(line) for line in lines]
    assert len(bodies) == 3
    assert bodies[2] == "event=create_failed disk=d1 errno=28 suppressed=4"
    assert read_lines() == []


def test_removals_of_different_segments_are_no_repeats(pipe: Pipe):
    fd, read_lines = pipe
    with logs.logging_to(fd):
        for n in range(10):
            log_event(LOGGER, logging.INFO, "segment_removed", disk="d1", segment=n, reason="force")
    assert len(read_lines()) == 10


def test_a_key_can_be_given(pipe: Pipe):
    fd, read_lines = pipe
    with logs.logging_to(fd):
        for n in range(10):
            log_event(LOGGER, logging.INFO, "slow", disk="d1", segment=n, repeat_key="d1")
    lines = [_body(line) for line in read_lines()]
    assert lines == ["event=slow disk=d1 segment=0", "event=repeats_suppressed of=slow count=9"]


def test_repeats_that_do_not_come_again_are_told_with_the_next_line(pipe: Pipe, clock: Clock):
    fd, read_lines = pipe
    with logs.logging_to(fd, repeat_interval_s=0.05):
        for _ in range(3):
            log_event(LOGGER, logging.ERROR, "create_failed", disk="d1")
        clock.now_s += 0.1
        log_event(LOGGER, logging.INFO, "mounted")
    assert [_body(line) for line in read_lines()][1:] == [
        "event=mounted",
        "event=repeats_suppressed of=create_failed count=2",
    ]


def test_hostile_names_cannot_fill_the_memory_of_repeats():
    repeats = logs.RepeatFilter(1_000)
    for n in range(3_000):
        record = logging.LogRecord("x", logging.INFO, "", 0, f"name {n}", None, None)
        assert repeats.filter(record)
        repeats.take_expired()
    assert len(repeats._seen) <= 1_000


def test_a_reader_that_stopped_reading_costs_lines_not_service(pipe: Pipe, monkeypatch: pytest.MonkeyPatch):
    log_without_reader(pipe, monkeypatch)
    read_to_the_end(pipe)


@pytest.mark.timing
def test_a_reader_that_stopped_reading_costs_little_time(pipe: Pipe, monkeypatch: pytest.MonkeyPatch):
    started = time.monotonic()
    log_without_reader(pipe, monkeypatch)
    assert time.monotonic() - started < 2
    read_to_the_end(pipe)
    assert time.monotonic() - started < 10


def log_without_reader(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the pipe and the queue take."""
    monkeypatch.setattr(logs, "_DRAIN_TIMEOUT_S", 0.1)
    monkeypatch.setattr(logs, "QUEUE_LINES", 100)
    fd, _ = pipe
    with logs.logging_to(fd):
        for n in range(1_000):
            log_event(LOGGER, logging.INFO, "busy", segment=n, text="x" * 1_000)


def read_to_the_end(pipe: Pipe) -> None:
    """Until the thread that writes has ended."""
    _, read_lines = pipe

    def has_ended() -> bool:
        read_lines()
        return not any(thread.name == "log-writer" for thread in threading.enumerate())

    eventually(has_ended)


def test_dropped_lines_are_counted(pipe: Pipe, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logs, "QUEUE_LINES", 100)
    fd, read_lines = pipe
    bodies: list[str] = []
    with logs.logging_to(fd):
        for n in range(500):
            log_event(LOGGER, logging.INFO, "busy", segment=n, text="x" * 1_000)

        def all_read() -> bool:
            bodies.extend(read_lines())
            return logs._writer is not None and logs._writer._lines.empty()

        eventually(all_read)
        log_event(LOGGER, logging.INFO, "after")
    text = "\n".join(bodies + read_lines())
    assert "event=log_lines_dropped count=" in text
    assert "event=after" in text
