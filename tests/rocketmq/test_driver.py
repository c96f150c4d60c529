"""The driver itself, on native directories: what these tests rely on must hold without any mount."""

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from commitlogfs.bench import rocketmq
from commitlogfs.bench.rocketmq import Broker, Distribution, NameServer, WorkloadFailedError

pytestmark = [
    pytest.mark.broker,
    pytest.mark.full,
    pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK (java, javac)"),
]

GIB = 1 << 30
MIB = 1 << 20


@pytest.fixture(scope="module")
def newest() -> Distribution:
    return rocketmq.fetch("5.5.0")


@pytest.fixture(autouse=True)
def no_process_left() -> Iterator[None]:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    assert [child.cmdline() for child in left] == []


@pytest.mark.soak
def test_acknowledged_messages_survive_kill_and_restart(newest, tmp_path):
    acked_file, received_file = tmp_path / "acked", tmp_path / "received"
    with (
        NameServer(newest, tmp_path) as names,
        Broker(newest, names, tmp_path, {"mappedFileSizeCommitLog": MIB}) as broker,
    ):
        sent = rocketmq.send(newest, names.address, "Kill", count=2000, keys=True, tags="A,B", acked=acked_file)
        assert (sent.sent, sent.failed) == (2000, 0)
        assert len(list(broker.commitlog_dirs[0].iterdir())) >= 3

        # Temporary files, which a killed server cannot remove, go with its home and not into the system's
        # directory.
        assert list(broker.home.glob("keyutil_*"))

        broker.kill()
        assert broker.returncode == -9
        broker.start()

        seen = rocketmq.consume(newest, names.address, "Kill", expect=2000, received=received_file)
        assert (seen.distinct, seen.duplicates, seen.corrupted, seen.skipped) == (2000, 0, 0, 0)
        assert (seen.lowest, seen.highest, seen.body_bytes) == (0, 1999, 2000 * 1024)

        acked = {message.sequence: message for message in rocketmq.read_acked(acked_file)}
        received = {message.sequence: message for message in rocketmq.read_received(received_file)}
        assert acked.keys() == received.keys() == set(range(2000))
        one = received[1234]
        assert acked[1234] == (1234, one.offset_msg_id, one.queue_id, one.queue_offset)

        by_id = rocketmq.query_by_id(newest, names.address, "Kill", one.offset_msg_id)
        assert by_id.log_offset == one.log_offset
        assert by_id.body == rocketmq.make_body(1234, 1024)
        by_key = rocketmq.query_by_key(newest, names.address, "Kill", "key-1234")
        assert [row[1:] for row in by_key] == [(one.queue_id, one.queue_offset)]

        stored = int(broker.runtime_info()["commitLogMaxOffset"])
        assert stored >= max(message.log_offset + message.store_bytes for message in received.values())
        broker.kill()  # a clean stop takes too long to have it in every test


@pytest.mark.soak
@pytest.mark.parametrize("version", rocketmq.VERSIONS)
def test_every_version_sends_consumes_and_queries(version, tmp_path):
    distribution = rocketmq.fetch(version)
    config = {"flushDiskType": "SYNC_FLUSH"}
    with NameServer(distribution, tmp_path) as names:
        with Broker(distribution, names, tmp_path, config) as broker:
            rocketmq.send(distribution, names.address, "Hello", count=100, keys=True)
            seen = rocketmq.consume(distribution, names.address, "Hello", expect=100)
            assert (seen.distinct, seen.duplicates, seen.corrupted) == (100, 0, 0)
            found = rocketmq.query_by_id(distribution, names.address, "Hello", seen.first.offset_msg_id)
            assert found.log_offset == seen.first.log_offset
            assert found.body == rocketmq.make_body(int.from_bytes(found.body[:8], "big"), 1024)
            if version == "5.5.0":
                assert broker.stop() == 143
            else:
                broker.kill()
        assert (broker.store_root / "abort").exists() == (version != "5.5.0")
        assert "InternalError" not in broker.log_text()


@pytest.mark.soak
def test_multi_path_alternates_and_sender_rides_through_a_kill(newest, tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]
    config: dict[str, str | int | float] = {
        "storePathCommitLog": ",".join(map(str, paths)),
        "mappedFileSizeCommitLog": MIB,
    }
    acked_file, received_file = tmp_path / "acked", tmp_path / "received"
    with NameServer(newest, tmp_path) as names, Broker(newest, names, tmp_path, config) as broker:
        with rocketmq.start_sender(newest, names.address, "Two", rate=1500, acked=acked_file) as sender:
            _wait_for_lines(acked_file, 1000)
            broker.kill()
            broker.start()
            _wait_for_lines(acked_file, len(acked_file.read_bytes().splitlines()) + 1000)
            totals = sender.stop()
        assert totals.failed > 0
        assert totals.sent == len(rocketmq.read_acked(acked_file))

        rocketmq.consume(newest, names.address, "Two", expect=totals.sent, received=received_file)
        received = {message.sequence for message in rocketmq.read_received(received_file)}
        assert {message.sequence for message in rocketmq.read_acked(acked_file)} <= received
        for index, path in enumerate(paths):
            assert {int(name) // MIB % 2 for name in os.listdir(path)} == {index}
        broker.kill()


def test_oracle_follows_the_documented_formula(newest):
    def formula(paths, offset, size, readonly=(), full=()):
        writable = sorted(set(paths) - set(readonly))
        candidates = sorted(set(writable) - set(full)) or writable
        return tuple(
            f"{candidates[(offset // size + ahead) % len(candidates)]}/{offset + ahead * size:020}"
            for ahead in (0, 1)
        )

    paths = ["/d/2", "/d/10", "/d/1"]
    with rocketmq.MultiPathOracle(newest) as oracle:
        for segment in (0, 1, 2, 7, 60_000):
            for excluded in (
                {},
                {"full": ["/d/10"]},
                {"readonly": ["/d/1"]},
                {"readonly": ["/d/2"], "full": ["/d/1", "/d/10"]},
                {"full": paths},
            ):
                chosen = oracle.choose(paths, segment * GIB, segment_size_bytes=GIB, **excluded)
                assert chosen == formula(paths, segment * GIB, GIB, **excluded)
        with pytest.raises(WorkloadFailedError, match="ArithmeticException"):
            oracle.choose(paths, 0, segment_size_bytes=GIB, readonly=paths)


def test_failed_start_says_why_and_leaves_nothing(newest, tmp_path):
    commitlog = tmp_path / "broker-a" / "store" / "commitlog"
    commitlog.mkdir(parents=True)
    (commitlog / "README").write_text("the broker refuses a stray file of another size")
    with NameServer(newest, tmp_path) as names:
        broker = Broker(newest, names, tmp_path)
        with pytest.raises(rocketmq.StartFailedError, match="exited with 253"):
            broker.start()
        assert "README" in broker.log_text()


def _wait_for_lines(path: Path, wanted: int) -> None:
    for _ in range(400):
        if path.exists() and path.read_bytes().count(b"\n") >= wanted:
            return
        time.sleep(0.1)
    raise AssertionError(f"{path.name} has fewer than {wanted} lines after 40 s")
