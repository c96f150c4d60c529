"""The tables of an export follow the log, and say when they have too many small files."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.utils.config import Config
from support.command_line import PIPELINE
from support.messages import messages
from support.waiting import eventually
from support.written_logs import write_log

from commitlogfs.bench import rocketmq
from commitlogfs.bench.rocketmq import Broker, NameServer
from commitlogfs.pipeline.jobs.export_directory import OWN, ExportBusyError, ExportDirectory, FinishedRange
from commitlogfs.pipeline.jobs.export_tables import ExportTables
from commitlogfs.pipeline.jobs.table_commits import TableSize

pytestmark = pytest.mark.timeout(900)

SEGMENT = 1 << 16
MIB = 1 << 20
STARTED_S = 240.0


@contextmanager
def following(
    directory: Path, *options: str, log: Path = Path("log"), interval: float | None = 0.5
) -> Iterator[subprocess.Popen[str]]:
    command = [*PIPELINE, "export", str(log), "out", "--delta", "--follow", *options]
    command += [] if interval is None else ["--interval", str(interval)]
    with subprocess.Popen(
        *(command,),
        cwd=directory,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def offsets(directory: Path) -> list[int]:
    if not deltalake.DeltaTable.is_deltatable(str(directory / "out")):
        return []
    rows = pa.table(deltalake.DeltaTable(directory / "out").scan().read_all())
    return sorted(rows["commitLogOffset"].to_pylist())


@pytest.mark.full
def test_the_table_follows_the_log_until_an_interrupt(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", SEGMENT, messages(300))
    with following(tmp_path) as process:
        for _ in range(3):
            eventually(lambda: offsets(tmp_path) == log.offsets or process.poll() is not None, STARTED_S)
            for make in messages(100, len(log.offsets)):
                log.append(make)
        eventually(lambda: offsets(tmp_path) == log.offsets or process.poll() is not None, STARTED_S)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, "")
    assert offsets(tmp_path) == log.offsets
    lines = out.splitlines()
    assert len(lines) == 4, "nothing is said of rounds without new messages"
    assert lines[0].startswith("300 messages in ")
    assert lines[-1].endswith(f"the log is exported up to {log.end:,}")


def interrupt(process: "subprocess.Popen[str]", how: signal.Signals = signal.SIGINT) -> tuple[int, str, str]:
    process.send_signal(how)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


@pytest.mark.full
def test_from_the_latest_offset_on_all_new_messages_are_exported(tmp_path: Path) -> None:
    """Also those that come while it waits for another export, or while it does not run."""
    log = write_log(tmp_path / "log", SEGMENT, messages(300))

    def append(count: int) -> None:
        for make in messages(count, len(log.offsets)):
            log.append(make)

    with following(tmp_path, "--starting-offsets", "latest") as process:

        def await_table() -> None:
            eventually(lambda: offsets(tmp_path) == log.offsets[300:] or process.poll() is not None, STARTED_S)

        eventually(lambda: (tmp_path / "out").exists() or process.poll() is not None, STARTED_S)
        append(100)
        await_table()
        with another_export(tmp_path / "out"):
            append(10)
            time.sleep(2)  # several rounds
            assert len(offsets(tmp_path)) == 100
        await_table()
        assert interrupt(process, signal.SIGTERM)[::2] == (0, "")
    append(10)
    with following(tmp_path, "--starting-offsets", "latest") as process:
        eventually(lambda: len(offsets(tmp_path)) == 120 or process.poll() is not None, STARTED_S)
        append(10)
        eventually(lambda: len(offsets(tmp_path)) == 130 or process.poll() is not None, STARTED_S)
        assert interrupt(process)[::2] == (0, "")
    assert offsets(tmp_path) == log.offsets[300:]


@contextmanager
def another_export(output: Path) -> Iterator[None]:
    """Holds the lock, once the process under test has released it."""
    directory = ExportDirectory(str(output))
    settings = json.loads((output / OWN / "export.json").read_text())

    def is_open() -> bool:
        with suppress(ExportBusyError):
            directory.open(settings)
            return True
        return False

    eventually(is_open)
    try:
        yield
    finally:
        directory.close()


@pytest.mark.full
def test_damage_is_reported_however_soon_it_ends(tmp_path: Path) -> None:
    """The next run does not read the range again."""
    log = write_log(tmp_path / "log", SEGMENT, messages(1500))
    log.write_at(log.offsets[3] + 90, b"?")  # inside the body
    with following(tmp_path, "--mode", "PERMISSIVE", "--range-size", "1k") as process:
        manifests = tmp_path / "out" / OWN / "ranges"
        eventually(lambda: any(manifests.glob("*.json")) or process.poll() is not None, STARTED_S)
        status, _, err = interrupt(process)
    assert (status, err.count("damage: ")) == (1, 1)
    assert f"log offset {log.offsets[3]}," in err


@pytest.mark.full
def test_what_it_cannot_read_ends_it_with_one_line(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", SEGMENT, messages(300))
    with following(tmp_path) as process:
        eventually(lambda: offsets(tmp_path) == log.offsets or process.poll() is not None, STARTED_S)
        known = list(log.offsets)
        log.append(messages(1, 300)[0])
        damaged = log.offsets[-1]
        for make in messages(5, 301):
            log.append(make)
        log.write_at(damaged + 4, b"XXXX")
        _, err = process.communicate(timeout=300)
    assert process.returncode == 1
    reason = err.splitlines()[-1]
    assert reason.startswith(f"commitlogfs-pipeline: segment {0:020d}, log offset {damaged}: no record begins here")
    assert offsets(tmp_path)[: len(known)] == known


BEHIND_S = 60
MEASURED_S = 600


@pytest.mark.soak
@pytest.mark.broker
@pytest.mark.timeout(3000)
@pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK (java, javac)")
def test_tables_stay_a_minute_behind_a_live_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the default interval, an Iceberg and a Delta table at once."""
    (tmp_path / "warehouse").mkdir()
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", f"file://{tmp_path}/warehouse")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    newest = rocketmq.fetch("5.5.0")
    acked, behind = tmp_path / "acked", dict[str, float]()
    with NameServer(newest, tmp_path) as names, Broker(newest, names, tmp_path, {}) as broker:
        log = broker.commitlog_dirs[0]
        sender = rocketmq.start_sender(newest, names.address, "Followed", size_bytes=1024, rate=500, acked=acked)
        eventually(lambda: acked.exists() and len(acked.read_bytes().splitlines()) > 100)
        with following(tmp_path, "--iceberg", "lake.logs.messages", log=log, interval=None) as process:
            eventually(lambda: in_delta(tmp_path) > 0 and in_iceberg() > 0, STARTED_S)
            began = time.monotonic()
            sent: list[tuple[float, int]] = []
            while (now := time.monotonic()) < began + MEASURED_S:
                sent.append((now, len(acked.read_bytes().splitlines())))
                for name, count in (("delta", in_delta(tmp_path)), ("iceberg", in_iceberg())):
                    newest_there = max((at for at, number in sent if number <= count), default=began)
                    behind[name] = max(behind.get(name, 0.0), time.monotonic() - newest_there)
                assert process.poll() is None
                time.sleep(1)
            outcome = sender.stop()
            eventually(lambda: in_delta(tmp_path) == in_iceberg() >= outcome.sent, BEHIND_S)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=300)
        assert (process.returncode, err) == (0, "")
        broker.stop()
    print(f"behind: {behind}")
    assert max(behind.values()) <= BEHIND_S


def in_delta(directory: Path) -> int:
    """Number of messages in the table."""
    if not deltalake.DeltaTable.is_deltatable(str(directory / "out")):
        return 0
    return sum(pa.table(deltalake.DeltaTable(directory / "out").get_add_actions())["num_records"].to_pylist())


def in_iceberg() -> int:
    catalog = load_catalog("lake")
    if not catalog.namespace_exists("logs") or not catalog.table_exists("logs.messages"):
        return 0
    snapshot = catalog.load_table("logs.messages").current_snapshot()
    if snapshot is None or snapshot.summary is None:
        return 0
    return int(snapshot.summary.additional_properties["total-records"])


class Table:
    def __init__(self) -> None:
        self.given: list[int] = []

    def add(self, finished: FinishedRange) -> bool:
        self.given.append(finished.start)
        return True

    def size(self) -> TableSize:
        return TableSize("t", 1, 1, "c")


def test_each_table_is_asked_once_for_a_range() -> None:
    first, second = Table(), Table()
    tables = ExportTables([first, second])
    ranges = [FinishedRange(start, start + 10, 0, (), (), ()) for start in (0, 10)]
    for one in (*ranges, *ranges):
        tables.add(one)
    assert first.given == second.given == [0, 10]


@pytest.mark.parametrize(
    ("files", "size", "wanted"),
    [(99, 99 * MIB, False), (100, 100 * MIB, True), (100, 100 * 32 * MIB, False), (0, 0, False)],
)
def test_many_small_files_need_compaction(files: int, size: int, wanted: bool) -> None:
    assert TableSize("t", files, size, "c").needs_compaction is wanted


@pytest.mark.full
def test_a_table_of_many_small_files_is_said_to_need_compaction(tmp_path: Path) -> None:
    write_log(tmp_path / "log", SEGMENT, messages(1200))
    command = [*PIPELINE, "export", "log", "out", "--delta", "--range-size", "1k", "--file-size", "1k"]
    command += ["--split-size", "1k"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "out: has 1" in done.stdout
    assert "on average; compact it with your engine (OPTIMIZE)" in done.stdout
