"""Messages of a real broker, sent by `replay` into a real second cluster: all are there, as they were, in the order
of their queues, however often the replay dies."""

import hashlib
import itertools
import json
import random
import shutil
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from pyspark.sql import SparkSession
from support import s3_server
from support.command_line import PIPELINE
from support.compressed import ZLIB, compressed
from support.messages import message, messages
from support.waiting import eventually
from support.written_logs import write_log

from commitlogfs.bench import rocketmq
from commitlogfs.bench.rocketmq import COMPRESSIONS, Broker, NameServer
from commitlogfs.bench.rocketmq.mqadmin import mqadmin
from commitlogfs.pipeline.jobs.export import ExportRequest, export
from commitlogfs.pipeline.replay.frames import FRAME_MESSAGES
from commitlogfs.pipeline.replay.logged import LogSource
from commitlogfs.pipeline.replay.records import NOT_SENT
from commitlogfs.pipeline.replay.run import ReplayRequest

pytestmark = [
    pytest.mark.broker,
    pytest.mark.full,
    pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK (java, javac)"),
]

SEED = 18
SETTINGS = {"mappedFileSizeCommitLog": 16 << 20}
QUEUES = 4


class Clusters(NamedTuple):
    """The log of a broker that has ended, and a target cluster without topics."""

    distribution: rocketmq.Distribution
    log: Path | str
    names: NameServer
    target: Broker
    workdir: Path

    def command(self, *arguments: object) -> list[str]:
        return [
            *PIPELINE,
            *("replay", str(self.log), "--to", self.names.address, "--client", str(self.distribution.jars)),
            *("--position", str(self.workdir / "position"), *map(str, arguments)),
        ]

    def replay(self, *arguments: object) -> dict[str, Any]:
        ran = self.run(*arguments, "--json")
        assert ran.returncode == 0, ran.stderr
        found: dict[str, Any] = json.loads(ran.stdout)
        return found

    def run(self, *arguments: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(self.command(*arguments), capture_output=True, text=True, timeout=3000, check=False)

    def make_topic(self, name: str) -> None:
        arguments = ("-b", self.target.address, "-t", name, "-r", str(QUEUES), "-w", str(QUEUES))
        mqadmin(self.distribution, self.names.address, "updateTopic", *arguments)

    def sent(self) -> list[dict[str, Any]]:
        """The messages in the target's log."""
        return rows_of(self.target.commitlog_dirs[0])

    def require_authentication(self, user: str, password: str) -> None:
        """Start the broker again, with RocketMQ's access control."""
        self.target.stop()
        providers = "org.apache.rocketmq.auth.authentication.provider"
        self.target.config |= {
            "authenticationEnabled": True,
            "authenticationProvider": f"{providers}.DefaultAuthenticationProvider",
            "authenticationMetadataProvider": f"{providers}.LocalAuthenticationMetadataProvider",
            "initAuthenticationUser": json.dumps({"username": user, "password": password}),
            "innerClientAuthenticationCredentials": json.dumps({"accessKey": user, "secretKey": password}),
        }
        self.target.spawn()
        eventually(lambda: self.names.knows(self.target.address))


Send = Callable[[rocketmq.Distribution, NameServer, Broker], None]


@pytest.fixture
def make_clusters(tmp_path: Path) -> Iterator[Callable[[Send | Path], Clusters]]:
    newest = rocketmq.fetch("5.5.0")
    with ExitStack() as stack:

        def make(send: Send | Path) -> Clusters:
            log = send if isinstance(send, Path) else written_by_a_broker(send)
            (tmp_path / "target").mkdir()
            names = stack.enter_context(NameServer(newest, tmp_path / "target"))
            target = stack.enter_context(Broker(newest, names, tmp_path / "target", SETTINGS))
            return Clusters(newest, log, names, target, tmp_path)

        def written_by_a_broker(send: Send) -> Path:
            (tmp_path / "source").mkdir()
            with (
                NameServer(newest, tmp_path / "source") as names,
                Broker(newest, names, tmp_path / "source", SETTINGS) as source,
            ):
                send(newest, names, source)
                source.stop()
            return source.commitlog_dirs[0]

        yield make


def each_row(log: Path | str) -> Iterator[dict[str, Any]]:
    """The messages of a log that a replay sends, as consumers get them, in the order of the log."""
    request = ReplayRequest.of({"path": str(log)}, "none:1", {}, None)
    for batch in LogSource.plan(request.options, None).batches():
        yield from (row for row in batch.to_pylist() if not row["topic"].startswith("%"))


def rows_of(log: Path | str) -> list[dict[str, Any]]:
    return list(each_row(log))


def content(row: dict[str, Any]) -> tuple[Any, ...]:
    """The part of a message that a consumer's program uses."""
    own = sorted((name, value) for name, value in row["properties"] if not is_added(name))
    return row["topic"], row["flag"], row["body"], tuple(own)


def digest(row: dict[str, Any]) -> bytes:
    return hashlib.sha256(repr(content(row)).encode()).digest()


def is_added(name: str) -> bool:
    return name in NOT_SENT or name.startswith("ORIGIN_")


def origin(row: dict[str, Any]) -> int:
    return int(dict(row["properties"])["ORIGIN_LOG_OFFSET"])


def send_every_kind(distribution: rocketmq.Distribution, names: NameServer, source: Broker) -> None:
    rocketmq.make_inner_topic(distribution, names.address, source.address, "Mixed")
    rocketmq.send_mixed(distribution, names.address, prefix="Mixed", rounds=5, inner=True)
    for compression in COMPRESSIONS:
        rocketmq.send_texts(distribution, names.address, "Texts", count=50, compression=compression)


def test_messages_of_every_kind_arrive_as_they_were(make_clusters: Callable[[Send], Clusters]) -> None:
    clusters = make_clusters(send_every_kind)
    before = rows_of(clusters.log)
    planned = clusters.replay("--dry-run")
    assert planned["messages"] == len(before)
    assert not list(clusters.target.commitlog_dirs[0].iterdir())

    away = clusters.run("--to", "127.0.0.1:9")
    assert away.returncode == 3
    assert "check the address of --to" in away.stderr
    assert len(away.stderr.splitlines()) == 1

    refused = clusters.run()
    assert refused.returncode == 4
    assert "is not found in the target cluster" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1

    for topic in planned["topics"]:
        clusters.make_topic(topic)
    clusters.make_topic("Renamed")
    done = clusters.replay("--rate", 2000)
    assert (done["messages"], done["topics"], done["repeated"]) == (len(before), planned["topics"], 0)
    after = clusters.sent()
    assert sorted(map(content, after)) == sorted(map(content, before))
    times = {row["commitLogOffset"]: (row["bornTimestamp"], row["storeTimestamp"]) for row in before}
    for row in after:
        properties = dict(row["properties"])
        stored = tuple(int(properties[f"ORIGIN_{name}_TIMESTAMP"]) for name in ("BORN", "STORE"))
        assert stored == tuple(round(time.timestamp() * 1000) for time in times[origin(row)])

    assert clusters.replay()["messages"] == 0, "the end was reached before"
    other = clusters.run("--topic", "Texts")
    assert other.returncode == 4
    assert "is the position of another replay" in other.stderr

    position = json.loads((clusters.workdir / "position").read_text())
    position.update(next_offset=0, queues={"Texts": ["lost:0"]})
    (clusters.workdir / "position").write_text(json.dumps(position))
    other = clusters.run()
    assert other.returncode == 4
    assert f"topic Texts: has {QUEUES} queues in the target cluster, and had others, 1," in other.stderr

    (clusters.workdir / "position").unlink()
    renamed = clusters.replay("--topic", "Texts", "--map-topic", "Texts=Renamed")
    assert renamed["topics"] == {"Renamed": 200}
    seen = rocketmq.read_digests(
        clusters.distribution, clusters.names.address, "Renamed", clusters.workdir / "seen"
    )
    texts = [hashlib.sha256(row["body"]).hexdigest() for row in before if row["topic"] == "Texts"]
    assert sorted(message.sha256 for message in seen) == sorted(texts)


@pytest.mark.parametrize(
    ("count", "kills"),
    [(20_000, 3), pytest.param(1_000_000, 20, marks=[pytest.mark.soak, pytest.mark.timeout(7200)])],
    ids=["few", "many"],
)
def test_killed_at_random_moments(make_clusters: Callable[[Send], Clusters], count: int, kills: int) -> None:
    def send(distribution: rocketmq.Distribution, names: NameServer, source: Broker) -> None:
        sent = rocketmq.send(distribution, names.address, "Orders", count=count, retry=True, timeout_s=3000)
        assert sent.sent == count, sent.last_error

    clusters = make_clusters(send)
    clusters.make_topic("Orders")
    chance = random.Random(SEED)  # noqa: S311 - to be repeated
    position = clusters.workdir / "position"
    rate = max(2000, count // 100)
    for killed in range(kills):
        command = clusters.command("--rate", rate)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        before = messages_of(position)
        eventually(lambda before=before: messages_of(position) > before)
        time.sleep(chance.uniform(0, 1))
        (client,) = psutil.Process(process.pid).children()
        interrupted = killed % 2
        process.send_signal(signal.SIGINT if interrupted else signal.SIGKILL)
        assert process.wait(300) == (130 if interrupted else -signal.SIGKILL)
        eventually(lambda client=client: not client.is_running() or client.status() == psutil.STATUS_ZOMBIE)
        assert messages_of(position) < count, f"all was sent before kill {killed}"
    clusters.replay()

    # A million messages are more than memory should hold.
    expected = {row["commitLogOffset"]: digest(row) for row in each_row(clusters.log)}
    assert len(expected) == count
    arrived = 0
    queues: dict[tuple[str, int], list[int]] = defaultdict(list)
    for row in each_row(clusters.target.commitlog_dirs[0]):
        assert digest(row) == expected[origin(row)]
        queues[row["topic"], row["queueId"]].append(origin(row))
        arrived += 1
    assert {offset for offsets in queues.values() for offset in offsets} == expected.keys()
    assert arrived - count <= kills * FRAME_MESSAGES
    back = 0
    for found in queues.values():
        firsts = list(dict.fromkeys(found))
        assert firsts == sorted(firsts), "a message was overtaken by a later one of its queue"
        back += sum(later <= earlier for earlier, later in itertools.pairwise(found))
    assert back <= kills * len(queues)


def messages_of(position: Path) -> int:
    """Messages sent so far, as the replay has recorded it."""
    try:
        return int(json.loads(position.read_text())["messages"])
    except FileNotFoundError:
        return 0


def test_a_body_that_fits_only_compressed(make_clusters: Callable[[Send | Path], Clusters], tmp_path: Path) -> None:
    """Larger than a broker's maxMessageSize, as its producer has compressed it."""
    bodies = [b"small", b"large " * (1 << 20), b"small again"]
    makers = [
        message(number, topic=b"Orders", body=compressed(body, ZLIB), sys_flag=ZLIB)
        for number, body in enumerate(bodies)
    ]
    clusters = make_clusters(write_log(tmp_path / "log", 16 << 20, makers).directory)
    clusters.make_topic("Orders")
    assert clusters.replay()["messages"] == 3
    assert sorted(row["body"] for row in clusters.sent()) == sorted(bodies)


def test_a_client_that_dies_is_one_line(make_clusters: Callable[[Send], Clusters]) -> None:
    def send(distribution: rocketmq.Distribution, names: NameServer, source: Broker) -> None:
        assert rocketmq.send(distribution, names.address, "Orders", count=6000, retry=True).sent == 6000

    clusters = make_clusters(send)
    clusters.make_topic("Orders")
    command = clusters.command("--rate", 1000)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    eventually(lambda: messages_of(clusters.workdir / "position") > 0)
    (client,) = psutil.Process(process.pid).children()
    client.kill()
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    assert out.startswith("commitlogfs-pipeline: topic Orders, log offsets ")
    assert "the JVM of RocketMQ's client has ended" in out
    assert out.count("\n") == 1
    clusters.replay()
    assert {origin(row) for row in clusters.sent()} == {row["commitLogOffset"] for row in rows_of(clusters.log)}


def test_a_broker_that_is_away_for_a_while(make_clusters: Callable[[Send], Clusters]) -> None:
    """It is killed, and comes back: the batch is sent again, and nothing is lost."""

    def send(distribution: rocketmq.Distribution, names: NameServer, source: Broker) -> None:
        assert rocketmq.send(distribution, names.address, "Orders", count=6000, retry=True).sent == 6000

    clusters = make_clusters(send)
    clusters.make_topic("Orders")
    position = clusters.workdir / "position"
    with (clusters.workdir / "out").open("w+") as out:
        process = subprocess.Popen(clusters.command("--rate", 1000, "--json"), stdout=out, stderr=subprocess.STDOUT)
        try:
            eventually(lambda: messages_of(position) > 0)
            clusters.target.kill()
            time.sleep(2)
            clusters.target.start()
            assert process.wait(120) == 0, (clusters.workdir / "out").read_text()
        finally:
            process.kill()
            process.wait()
    assert {origin(row) for row in clusters.sent()} == {row["commitLogOffset"] for row in rows_of(clusters.log)}


def require_one_line(ran: "subprocess.CompletedProcess[str]", status: int, text: str) -> None:
    assert (ran.returncode, ran.stderr.count("\n")) == (status, 1), ran.stderr
    assert text in ran.stderr


@pytest.mark.skipif(bool(s3_server.lack()), reason=s3_server.lack())
def test_a_log_in_a_bucket(make_clusters: Callable[[Send | Path], Clusters], tmp_path: Path) -> None:
    """Each message once, in two runs; the second one continues where the first has ended."""
    log = write_log(tmp_path / "log", 1 << 16, messages(3000))
    clusters = make_clusters(log.directory)
    before = rows_of(log.directory)
    for topic in {row["topic"] for row in before}:
        clusters.make_topic(topic)
    with s3_server.s3_server(tmp_path) as endpoint:
        remote = clusters._replace(log=s3_server.store(endpoint, "archive", "log", log.directory))
        first = remote.replay("--ending-offsets", log.offsets[2000])
        rest = remote.replay()
    assert (first["messages"], rest["messages"]) == (2000, 1000)
    after = clusters.sent()
    assert sorted(map(origin, after)) == log.offsets
    assert sorted(map(content, after)) == sorted(map(content, before))
    assert "secret" not in (clusters.workdir / "position").read_text()
    require_one_line(remote.run(), 3, "Could not connect to server")


def test_an_export(make_clusters: Callable[[Send | Path], Clusters], spark: SparkSession, tmp_path: Path) -> None:
    """Killed once: the next run continues, and all messages are there, in their order."""
    log = write_log(tmp_path / "log", 1 << 20, messages(8000))
    for end in (log.offsets[3000], log.end):
        export(spark, ExportRequest(str(log.directory), str(tmp_path / "out")), {"endingOffsets": str(end)})
    clusters = make_clusters(tmp_path / "out")
    before = rows_of(log.directory)
    for topic in {row["topic"] for row in before}:
        clusters.make_topic(topic)
    position = clusters.workdir / "position"
    process = subprocess.Popen(
        clusters.command("--rate", 2000), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    eventually(lambda: messages_of(position) > 0)
    process.kill()
    process.wait()
    assert messages_of(position) < 8000
    clusters.replay()
    after = sorted(clusters.sent(), key=lambda row: row["commitLogOffset"])
    assert sorted({origin(row) for row in after}) == log.offsets
    assert len(after) <= 8000 + FRAME_MESSAGES
    assert {content(row) for row in after} == {content(row) for row in before}
    for topic in {row["topic"] for row in before}:
        for queue in range(QUEUES):
            found = [origin(row) for row in after if (row["topic"], row["queueId"]) == (topic, queue)]
            firsts = list(dict.fromkeys(found))
            assert firsts == sorted(firsts)
    require_one_line(clusters.run("--segment-size", "1g"), 2, "--segment-size: has no effect on an export")
    position.write_text(position.read_text().replace(f'"next_offset": {log.end}', f'"next_offset": {log.end + 1}'))
    require_one_line(clusters.run(), 4, f"ends before the position {log.end + 1}")


def test_a_cluster_with_access_keys(make_clusters: Callable[[Send | Path], Clusters], tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", 1 << 20, [message(number, topic=b"Orders") for number in range(1500)])
    clusters = make_clusters(log.directory)
    clusters.make_topic("Orders")
    clusters.require_authentication("admin", "12345678")
    require_one_line(clusters.run(), 1, "username cannot be null")
    keys = tmp_path / "keys"
    keys.touch(0o600)
    for user, password, reason in (("admin", "wrong", "check signature failed"), ("me", "12345678", "User:me")):
        keys.write_text(f'access_key = "{user}"\nsecret_key = "{password}"\n')
        refused = clusters.run("--credentials", keys)
        require_one_line(refused, 1, reason)
        assert "; check the access key of --credentials" in refused.stderr
        assert password not in refused.stderr
    keys.write_text('access_key = "admin"\nsecret_key = "12345678"\n')
    assert clusters.replay("--credentials", keys)["messages"] == 1500
    assert sorted(map(origin, clusters.sent())) == log.offsets
