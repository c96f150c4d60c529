"""Logging of the daemon: one logfmt line for each event, on stderr.

For the journal each line begins with its priority (`<6>`, sd-daemon(3)), otherwise with the time. Names that come
from clients can hold any byte; nothing in a value can end a line or look like another field. Repeats of the same
event are suppressed and counted. A thread with a bounded queue writes the lines, so if nobody reads them, lines are
lost but the daemon continues.
"""

import contextlib
import logging
import logging.handlers
import os
import queue
import re
import signal
import threading
import time
from collections.abc import Hashable, Iterator
from typing import Any

REPEAT_INTERVAL_S = 10.0
"""Time after an event during which its repeats (same event and key) are suppressed."""

FILE_VARIABLE = "COMMITLOGFS_LOG_FILE"
"""Environment variable of a background daemon: absolute path of the file that is its standard error."""
OPEN_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
"""O_NONBLOCK: a FIFO without a reader is refused instead of waited for."""
MODE = 0o640

QUEUE_LINES = 10_000
MAX_VALUE_LENGTH = 2_000
MAX_TRACEBACK_LENGTH = 16_000

_Lines = queue.Queue[logging.LogRecord | None]
_DRAIN_TIMEOUT_S = 2.0
_REOPEN_TIMEOUT_S = 0.5
"""How long the process waits for the file to be opened. Then it continues, as a broker may wait for it."""
_STANDARD_ERROR = 2
_MAX_REPEAT_KEYS = 1_000
_PLAIN = re.compile(r"[A-Za-z0-9_./:@%+,\-]+")
_NOT_IN_KEYS = re.compile(r"[^A-Za-z0-9_.]")
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))


@contextlib.contextmanager
def logging_to(
    fd: int = 2, *, level: int = logging.INFO, repeat_interval_s: float = REPEAT_INTERVAL_S
) -> Iterator[None]:
    """Send the whole process's log to descriptor `fd` (stderr) until the context ends, then drain it.

    Start it in the process that logs: its thread does not survive a fork.
    """
    lines: _Lines = queue.Queue(QUEUE_LINES)
    writer = _Writer(lines, LogfmtFormatter(journal=is_journal(fd)), fd)
    handler = _DroppingHandler(lines, RepeatFilter(repeat_interval_s))
    global _writer
    root = logging.getLogger()
    former_level, former_handlers = root.level, root.handlers[:]
    root.handlers[:] = [handler]
    root.setLevel(level)
    former_writer, _writer = _writer, writer
    writer.start()
    try:
        yield
    finally:
        root.handlers[:] = former_handlers
        root.setLevel(former_level)
        _writer = former_writer
        handler.close()
        writer.stop()


def catch_hangup() -> None:
    """Let SIGHUP open the log file again. It is also opened now, as it may have been renamed before."""

    def reopen(_number: int, _frame: object) -> None:
        if _writer is not None:
            _writer.is_reopening = True  # at the next line: the interrupted code may hold the lock of the queue
        else:
            _reopen_in_time()

    signal.signal(signal.SIGHUP, reopen)
    _reopen_in_time()


def reopen_soon() -> None:
    """Have the writing thread open the log file again. Not for a signal handler."""
    if _writer is not None:
        _writer.reopen()


def _reopen_in_time() -> None:
    """Open the log file in another thread: on a disk that hangs, open(2) hangs, too."""
    thread = threading.Thread(target=_reopen, name="log-reopening", daemon=True)
    thread.start()
    thread.join(_REOPEN_TIMEOUT_S)


def _reopen() -> str:
    """Point standard error at the log file, which is made if it is absent. Returns the reason for a failure, or "".

    If the log is not a file, nothing changes.
    """
    path = os.environ.get(FILE_VARIABLE)
    if not path:
        return ""
    try:
        fd = os.open(path, OPEN_FLAGS, MODE)
    except OSError as error:
        return error.strerror or str(error)
    os.dup2(fd, _STANDARD_ERROR)
    os.close(fd)
    return ""


def is_journal(fd: int) -> bool:
    """Whether `fd` leads to systemd's journal ($JOURNAL_STREAM names its device and inode)."""
    try:
        state = os.fstat(fd)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{state.st_dev}:{state.st_ino}"


def format_value(value: object, max_length: int = MAX_VALUE_LENGTH) -> str:
    """`value` as a logfmt value: bare if harmless, else quoted, with all unprintable characters escaped."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = os.fsdecode(value) if isinstance(value, bytes | os.PathLike) else str(value)
    if len(text) > max_length:
        text = text[:max_length] + "..."
    if _PLAIN.fullmatch(text):
        return text
    return '"' + "".join(_escape(character) for character in text) + '"'


class LogfmtFormatter(logging.Formatter):
    """Formats every record, ours and libraries', as exactly one line."""

    def __init__(self, *, journal: bool) -> None:
        super().__init__()
        self._journal = journal

    def format(self, record: logging.LogRecord) -> str:
        if self._journal:
            prefix = f"<{_priority(record.levelno)}>"
        else:
            moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            prefix = f"{moment}.{int(record.msecs):03d}Z {record.levelname.lower()} "
        fields: dict[str, object] = dict(getattr(record, "fields", {}))
        event = getattr(record, "event", None)
        if event is None:
            event = "message"
            fields = {"logger": record.name, "text": record.getMessage()}
        if hasattr(record, "suppressed"):
            fields["suppressed"] = record.suppressed
        parts = [f"event={format_value(event)}"]
        parts += [f"{_NOT_IN_KEYS.sub('_', key)}={format_value(value)}" for key, value in fields.items()]
        traceback = record.exc_text or (self.formatException(record.exc_info) if record.exc_info else "")
        if traceback:
            # The end of a traceback names the error.
            tail = traceback[-MAX_TRACEBACK_LENGTH:]
            parts.append(f"traceback={format_value(tail, MAX_TRACEBACK_LENGTH)}")
        return prefix + " ".join(parts)


class RepeatFilter:
    """Lets the first record of an event and key pass, and suppresses its repeats for an interval.

    The next one that passes has `suppressed=N`. If the event does not come again, `take_expired` returns its count.
    Thread-safe; it remembers a bounded number of keys.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._seen: dict[Hashable, _Repeats] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log `record`. Sets `suppressed` on it if repeats were suppressed before."""
        event = getattr(record, "event", None)
        key: Hashable
        if event is None:
            key = (record.name, record.levelno, record.getMessage())
        else:
            key = (event, record.levelno, getattr(record, "repeat_key", None))
        now = time.monotonic()
        with self._lock:
            repeats = self._seen.get(key)
            if repeats is not None and now < repeats.until:
                repeats.suppressed += 1
                return False
            self._seen.pop(key, None)  # to the end of the order of expiry
            self._seen[key] = _Repeats(event or "message", now + self._interval_s)
        if repeats is not None and repeats.suppressed:
            record.__dict__["suppressed"] = repeats.suppressed
        return True

    def take_expired(self, *, everything: bool = False) -> list[tuple[str, int]]:
        """Drop the keys whose interval is over, or `everything`; returns events and counts of suppressed
        repeats."""
        now = time.monotonic()
        counts: dict[str, int] = {}
        with self._lock:
            for key, repeats in list(self._seen.items()):
                if not everything and now < repeats.until and len(self._seen) <= _MAX_REPEAT_KEYS:
                    break
                del self._seen[key]
                if repeats.suppressed:
                    counts[repeats.event] = counts.get(repeats.event, 0) + repeats.suppressed
        return sorted(counts.items())


class _Repeats:
    __slots__ = ("event", "suppressed", "until")

    def __init__(self, event: str, until: float) -> None:
        self.event = event
        self.until = until
        self.suppressed = 0


class _DroppingHandler(logging.handlers.QueueHandler):
    """Hands records to the writing thread; drops them, counted, while its queue is full."""

    def __init__(self, lines: _Lines, repeats: RepeatFilter) -> None:
        super().__init__(lines)
        self._repeats = repeats
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        if self._repeats.filter(record):
            super().emit(record)
        self._log_suppressed(self._repeats.take_expired())

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        # Arguments may change before the writer formats them, and a traceback would keep its frames alive.
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        record.msg, record.args, record.exc_info = record.getMessage(), None, None
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            if self._dropped:
                self.queue.put_nowait(_event_record("log_lines_dropped", count=self._dropped))
                self._dropped = 0
            self.queue.put_nowait(record)
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        self._log_suppressed(self._repeats.take_expired(everything=True))
        super().close()

    def _log_suppressed(self, counts: list[tuple[str, int]]) -> None:
        for event, count in counts:
            self.enqueue(_event_record("repeats_suppressed", of=event, count=count))


class _Writer(threading.Thread):
    """Writes records to a descriptor. A stream has a lock, which a blocked write would hold at exit."""

    def __init__(self, lines: _Lines, formatter: logging.Formatter, fd: int) -> None:
        super().__init__(name="log-writer", daemon=True)
        self._lines = lines
        self._formatter = formatter
        self._fd = fd
        self.is_reopening = False

    def run(self) -> None:
        while (record := self._lines.get()) is not None:
            if self.is_reopening:
                self.is_reopening = False
                reason = _reopen()
                if reason:
                    self._write(_event_record("log_not_reopened", reason=reason))
            if record is not _WAKE:
                self._write(record)

    def _write(self, record: logging.LogRecord) -> None:
        line = self._formatter.format(record) + "\n"
        with contextlib.suppress(OSError):  # the log is the only place to report errors to
            os.write(self._fd, line.encode(errors="backslashreplace"))

    def reopen(self) -> None:
        """Open the log file again, before the next line that is written."""
        self.is_reopening = True
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(_WAKE)

    def stop(self) -> None:
        """Write the lines that are left and end. If nobody reads them, give up after a while."""
        try:
            self._lines.put(None, timeout=_DRAIN_TIMEOUT_S)
        except queue.Full:
            with contextlib.suppress(queue.Empty):
                while True:
                    self._lines.get_nowait()
            self._lines.put(None)
        self.join(_DRAIN_TIMEOUT_S)


_WAKE = logging.makeLogRecord({})
"""Record that is not written; it wakes the writer."""
_writer: _Writer | None = None
"""The writer of the present `logging_to`."""


def _event_record(event: str, **fields: Any) -> logging.LogRecord:
    record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, event, None, None)
    record.__dict__.update(event=event, fields=fields)
    return record


def _priority(level: int) -> int:
    return next((priority for floor, priority in _PRIORITIES if level >= floor), 7)


def _escape(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is no UTF-8, as os.fsdecode keeps it
        return f"\\x{code - 0xDC00:02x}"
    if character.isprintable():
        return character
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
