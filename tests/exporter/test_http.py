"""The exporter beside real mounts, over HTTP."""

import base64
import os
import select
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import bcrypt
import psutil
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from support.command_line import run_cli
from support.exporters import HOST, RunningExporter, running_exporter
from support.pools import PoolMount, pool_in
from support.timings import timing_variables
from support.waiting import PATIENCE_S, eventually

from commitlogfs.exporter.impatient import MOST_CONNECTIONS
from commitlogfs.mount.config.timing import VARIABLE
from commitlogfs.store.timing import DEFAULT, ExporterTiming, Timing

pytestmark = [pytest.mark.mounted, pytest.mark.root]

MakePool = Callable[..., PoolMount]
ANSWER_S = 0.5
"""Far more than an answer takes (bench/exporter measures that), and far less than a daemon that hangs."""
PATHS_THAT_ANSWER = ("/metrics", "/api/status", "/healthz", "/")
SHORT_S = 2.0
"""A request's time limit, for tests that wait for its end."""


def fill(pool: PoolMount) -> None:
    pool.start()
    pool.make_segments(range(6))


@pytest.fixture(scope="module")
def pool(module_directory: Path) -> Iterator[PoolMount]:
    """Six segments on three disks, mounted, for tests that leave the mount as it was."""
    with pool_in(module_directory) as pool:
        fill(pool)
        yield pool


@pytest.fixture(scope="module")
def exporter(pool: PoolMount) -> Iterator[RunningExporter]:
    with running_exporter(pool.workdir, pool.env, pool.name) as running:
        yield running


@pytest.fixture(scope="module")
def impatient(pool: PoolMount) -> Iterator[RunningExporter]:
    """Requests have SHORT_S."""
    directory = pool.workdir / "impatient"
    directory.mkdir()
    times = timing_variables(Timing(exporter=ExporterTiming(request_s=SHORT_S)))
    with running_exporter(directory, {**pool.env, **times}, pool.name) as running:
        yield running


@pytest.fixture
def own_pool(make_pool: MakePool) -> PoolMount:
    """The same, for one test, which may change it."""
    made = make_pool(3)
    fill(made)
    return made


@pytest.fixture
def own_exporter(own_pool: PoolMount) -> Iterator[RunningExporter]:
    with running_exporter(own_pool.workdir, own_pool.env, own_pool.name) as running:
        yield running


def test_metrics_in_both_formats(pool: PoolMount, exporter: RunningExporter) -> None:
    eventually(lambda: exporter.value("up", pool=pool.name) == 1)
    assert exporter.value("disk_segments", pool=pool.name, disk=str(pool.disks[0])) == 2
    age_s = exporter.value("figures_age_seconds", pool=pool.name)
    assert age_s is not None
    assert 0 <= age_s < 10
    plain = exporter.request("/metrics")
    assert plain.headers["content-type"].startswith("text/plain; version=")
    asked = exporter.request("/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert asked.headers["content-type"].startswith("application/openmetrics-text")
    assert asked.text.endswith("# EOF\n")
    families = {family.name for family in parse_openmetrics(asked.text)}
    assert {"commitlogfs_up", "commitlogfs_fuse_ops", "commitlogfs_segment_create_seconds"} <= families
    assert "_created" not in asked.text


def test_figures_follow_the_mount(own_pool: PoolMount, own_exporter: RunningExporter) -> None:
    eventually(lambda: own_exporter.value("last_offset_bytes", pool=own_pool.name) == 5 * own_pool.segment_size)
    own_pool.make_segments([6])
    eventually(lambda: own_exporter.value("last_offset_bytes", pool=own_pool.name) == 6 * own_pool.segment_size)
    mount = own_exporter.mount(own_pool.name)
    assert (mount["up"], mount["error"], mount["mountpoint"]) == (True, None, str(own_pool.mountpoint))
    assert mount["status"]["segments"]["count"] == 7


@contextmanager
def unanswering(pool: PoolMount, exporter: RunningExporter, way: str) -> Iterator[list[threading.Thread]]:
    """Keep the daemon from answering while threads ask for its map; yields the threads."""
    eventually(lambda: (exporter.mount(pool.name)["status"] or {}).get("segments", {}).get("count") == 6)
    assert pool.daemon is not None
    if way == "killed":
        pool.kill()
    else:
        pool.daemon.send_signal(signal.SIGSTOP)
    try:
        eventually(lambda: exporter.value("up", pool=pool.name) == 0)
        maps = [
            threading.Thread(target=exporter.request, args=(f"/api/mounts/{pool.name}/map",)) for _ in range(20)
        ]
        for asking in maps:
            asking.start()
        yield maps
        for asking in maps:
            asking.join()
    finally:
        if pool.daemon is not None:
            pool.daemon.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("way", ["killed", "hangs"])
def test_the_last_figures_of_a_daemon_that_does_not_answer(
    own_pool: PoolMount, own_exporter: RunningExporter, way: str
) -> None:
    with unanswering(own_pool, own_exporter, way) as maps:
        for path in PATHS_THAT_ANSWER:
            assert own_exporter.request(path).status == 200
        aged = own_exporter.value("figures_age_seconds", pool=own_pool.name)
        assert aged is not None
        mount = own_exporter.mount(own_pool.name)
        assert mount["status"]["segments"]["count"] == 6
        assert mount["error"]
        for asking in maps:
            asking.join()
        later = own_exporter.value("figures_age_seconds", pool=own_pool.name)
        assert later is not None
        assert later > aged
    if way == "hangs":
        eventually(lambda: own_exporter.value("up", pool=own_pool.name) == 1)


@pytest.mark.timing
@pytest.mark.parametrize("way", ["killed", "hangs"])
def test_a_daemon_that_does_not_answer_delays_nothing(
    own_pool: PoolMount, own_exporter: RunningExporter, way: str
) -> None:
    with unanswering(own_pool, own_exporter, way):
        for path in PATHS_THAT_ANSWER:
            begun_s = time.monotonic()
            assert own_exporter.request(path).status == 200
            assert time.monotonic() - begun_s < ANSWER_S


def test_all_mounts_of_the_runtime_directory_and_those_that_are_only_configured(
    pool: PoolMount, workdir: Path
) -> None:
    with running_exporter(workdir, pool.env) as exporter:
        eventually(lambda: exporter.value("up", pool=pool.name) == 1)
        assert exporter.mount(pool.name)["up"]
    with running_exporter(workdir, pool.env, pool.name, "absent") as exporter:
        eventually(lambda: exporter.value("up", pool=pool.name) == 1)
        assert exporter.value("up", pool="absent") == 0
        assert exporter.value("figures_age_seconds", pool="absent") is None
        absent = exporter.mount("absent")
        assert (absent["up"], absent["status"], absent["mountpoint"]) == (False, None, "")


def test_the_map(pool: PoolMount, exporter: RunningExporter) -> None:
    eventually(lambda: exporter.value("up", pool=pool.name) == 1)
    drawn = exporter.request(f"/api/mounts/{pool.name}/map?columns=3").json()
    assert [column["segments"] for column in drawn["columns"]] == [2, 2, 2]
    drawn = exporter.request(f"/api/mounts/{pool.name}/map").json()
    assert [column["disk"] for column in drawn["columns"]] == [1, 2, 3, 1, 2, 3]
    assert drawn["first_offset"] == 0
    for query in ("columns=0", "columns=2001", "columns=x", "columns=-1", "columns=1e3", "columns=" + "9" * 5000):
        assert exporter.request(f"/api/mounts/{pool.name}/map?{query}").status == 400
    assert exporter.request("/api/mounts/other/map").status == 404


def test_a_browser_may_do_nothing_but_show_the_page(exporter: RunningExporter) -> None:
    for path in ("/", "/api/status", "/metrics", "/nothing", "/static/page.css"):
        headers = exporter.request(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_it_only_reads(exporter: RunningExporter, method: str) -> None:
    for path in ("/", "/metrics", "/api/status", "/static/index.html"):
        assert exporter.request(path, method).status in (400, 405)


PATHS = (
    "/static/../app.py",
    "/static/%2e%2e/app.py",
    "/static/..%2fapp.py",
    "/static/....//app.py",
    "/static//etc/passwd",
    "/static/%00",
    "//etc/passwd",
    "/../../../../etc/passwd",
    "/api/mounts/../../etc/passwd/map",
    "/api/mounts/%2e%2e/map",
    "/" + "a" * 8000,
)


def test_hostile_requests_change_nothing(own_pool: PoolMount, own_exporter: RunningExporter) -> None:
    """A thousand of them: long, slow, malformed, with other methods, hosts and paths."""
    eventually(lambda: own_exporter.value("up", pool=own_pool.name) == 1)

    def resident_kib() -> int:
        text = Path(f"/proc/{own_exporter.process.pid}/status").read_text()
        return int(text.split("VmRSS:")[1].split()[0])

    slow = [socket.create_connection((HOST, own_exporter.port)) for _ in range(100)]
    for number, peer in enumerate(slow):
        peer.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n"[: 1 + number % 30])
    hostile = [
        *(b"GET %s HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n" % path.encode() for path in PATHS),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(200),
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET\r\n\r\n",
        b"\r\n" * 2000,
        b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"X%d: y\r\n" % number for number in range(3000)) + b"\r\n",
        b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + os.urandom(100),
        b"GET /api/mounts/%s/map?columns=99999 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        % own_pool.name.encode(),
        os.urandom(1000),
    ]

    def send_all(count: int) -> None:
        for number in range(count):
            with socket.create_connection((HOST, own_exporter.port)) as peer:
                peer.settimeout(PATIENCE_S)
                try:
                    peer.sendall(hostile[number % len(hostile)])
                    peer.shutdown(socket.SHUT_WR)
                    while peer.recv(65536):
                        pass
                except TimeoutError:
                    pytest.fail(f"no end of the answer to {hostile[number % len(hostile)][:80]!r}")
                except OSError:
                    pass

    send_all(200)
    before = resident_kib()
    send_all(700)
    assert own_exporter.request("/healthz").text == "ok\n"
    assert resident_kib() < before * 1.2
    for peer in slow:
        peer.close()
    eventually(lambda: own_exporter.value("up", pool=own_pool.name) == 1)
    own_pool.make_segments([6])
    assert own_pool.status()["segments"]["count"] == 7
    assert "traceback" not in own_pool.log_since_start()


def test_slow_clients_are_closed(impatient: RunningExporter) -> None:
    await_close_of_slow_client(impatient)


@pytest.mark.timing
def test_slow_clients_are_closed_in_time(exporter: RunningExporter, impatient: RunningExporter) -> None:
    for running, within_s in ((exporter, 25), (impatient, DEFAULT.exporter.request_s - 2)):
        begun_s = time.monotonic()
        await_close_of_slow_client(running)
        assert time.monotonic() - begun_s < within_s


def await_close_of_slow_client(exporter: RunningExporter) -> None:
    with socket.create_connection((HOST, exporter.port)) as peer:
        peer.send(b"GET /metrics HTT")
        peer.settimeout(PATIENCE_S)
        assert peer.recv(100) == b"" or b"408" in peer.recv(100)


def test_clients_who_take_no_answer_are_closed(impatient: RunningExporter) -> None:
    request = b"GET /static/page.js HTTP/1.1\r\nHost: x\r\n\r\n"
    with socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        peer.settimeout(PATIENCE_S)
        peer.connect((HOST, impatient.port))
        peer.sendall(request * 200)
        assert peer.recv(1, socket.MSG_PEEK), "no answer"
        eventually(lambda: connections(impatient) == 0)
        taken = 0
        with suppress(ConnectionResetError):
            while part := peer.recv(65536):
                taken += len(part)
    assert taken < 200 * len(impatient.request("/static/page.js").body)
    assert impatient.request("/healthz").text == "ok\n"


@pytest.mark.timing
def test_too_many_connections_are_closed_at_once(exporter: RunningExporter) -> None:
    peers = [socket.create_connection((HOST, exporter.port)) for _ in range(MOST_CONNECTIONS + 50)]
    try:
        eventually(lambda: connections(exporter) == MOST_CONNECTIONS, DEFAULT.exporter.request_s / 2)
        closed = [peer for peer in peers if select.select([peer], [], [], 0)[0]]
        assert len(closed) == 50
    finally:
        for peer in peers:
            peer.close()
    eventually(lambda: connections(exporter) == 0)
    assert exporter.request("/healthz").text == "ok\n"


def connections(exporter: RunningExporter) -> int:
    """Number of those that the exporter holds."""
    found = psutil.Process(exporter.process.pid).net_connections("tcp")
    return sum(connection.status == psutil.CONN_ESTABLISHED for connection in found)


def test_a_certificate_and_users(pool: PoolMount, workdir: Path) -> None:
    certificate, key, users = workdir / "cert.pem", workdir / "key.pem", workdir / "users"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    users.write_text(f"# readers\nanna:{bcrypt.hashpw(b'geheim', bcrypt.gensalt(4)).decode()}\n")
    context = ssl.create_default_context(cafile=str(certificate))
    options = ("--certfile", certificate, "--keyfile", key, "--auth", users)
    with running_exporter(workdir, pool.env, *map(str, options), context=context) as exporter:
        refused = exporter.request("/metrics")
        assert (refused.status, refused.text) == (401, "log in\n")
        assert refused.headers["www-authenticate"].startswith("Basic ")
        for wrong in ("anna:falsch", "bert:geheim", "anna", ":", "anna:" + "x" * 100):
            assert exporter.request("/metrics", Authorization=basic(wrong)).status == 401
        for header in ("Basic !!!", "Bearer x", "Basic", "Basic " + "A" * 3000):
            assert exporter.request("/metrics", Authorization=header).status == 401
        for _ in range(2):
            right = exporter.request("/metrics", Authorization=basic("anna:geheim"))
            assert right.status == 200
        assert "commitlogfs_up" in right.text


def basic(credentials: str) -> str:
    return "Basic " + base64.b64encode(credentials.encode()).decode()


def test_names_with_markup_are_data(pool: PoolMount, exporter: RunningExporter) -> None:
    answer = exporter.request("/api/mounts/%3Cscript%3Ealert(1)%3C%2Fscript%3E/map")
    assert answer.status == 404
    assert "<script" not in answer.text
    assert answer.headers["content-type"].startswith("text/plain")


# --- without HTTP -----------------------------------------------------------------------------------------


def test_once_and_textfile(pool: PoolMount, workdir: Path) -> None:
    ran = pool.cli("exporter", "--once", pool.name)
    assert ran.status == 0, ran.err
    assert f'commitlogfs_up{{pool="{pool.name}"}} 1.0' in ran.out
    target = workdir / "textfiles"
    missing = pool.cli("exporter", "--once", "--textfile", target)
    assert (missing.status, missing.err.count("\n")) == (4, 1)
    target.mkdir()
    assert pool.cli("exporter", "--once", "--textfile", target, pool.name).status == 0
    assert [item.name for item in target.iterdir()] == ["commitlogfs.prom"]
    written = target / "commitlogfs.prom"
    assert f'commitlogfs_up{{pool="{pool.name}"}} 1.0' in written.read_text()
    assert written.stat().st_mode & 0o777 == 0o644


def test_the_textfile_is_written_again(own_pool: PoolMount, workdir: Path) -> None:
    with running_exporter(workdir, own_pool.env, own_pool.name, "--textfile", str(workdir), "--interval", "1s"):
        written = workdir / "commitlogfs.prom"
        eventually(lambda: written.exists() and 'up{pool="test"} 1.0' in written.read_text())
        own_pool.make_segments([6])
        eventually(lambda: 'last_offset_bytes{pool="test"} 6.291456e+06' in written.read_text())
    assert not written.exists(), "nobody would know that it is old"


def test_half_a_textfile_of_an_exporter_that_was_killed_is_removed(pool: PoolMount, workdir: Path) -> None:
    old, new = workdir / ".commitlogfs.prom.old", workdir / ".commitlogfs.prom.new"
    old.touch()
    os.utime(old, (0, 0))
    new.touch()
    assert pool.cli("exporter", "--once", "--textfile", workdir, pool.name).status == 0
    assert [old.exists(), new.exists()] == [False, True]


@pytest.mark.parametrize(
    ("options", "status"),
    [
        (("--listen", "nonsense"), 2),
        (("--listen", "127.0.0.1:99999"), 2),
        (("--listen", "127.0.0.1:" + "1" * 5000), 2),
        (("--listen", "a" * 70 + ":9639"), 2),
        (("--listen", "a..b:9639"), 2),
        (("--interval", "5s"), 2),
        (("--interval", "5s", "--once"), 2),
        (("--textfile", "/tmp", "--auth", "/dev/null"), 2),
        (("--once", "--certfile", "/dev/null"), 2),
        (("--listen", "192.0.2.1:9639"), 4),
        (("--interval", "0s"), 2),
        (("--keyfile", "/dev/null"), 2),
        (("--once", "--listen", "127.0.0.1:1"), 2),
        (("--auth", "/nonexistent"), 2),
        (("--auth", "/dev/null"), 2),
        (("--certfile", "/nonexistent"), 2),
    ],
)
def test_bad_options_are_one_line(pool: PoolMount, options: tuple[str, ...], status: int) -> None:
    ran = pool.cli("exporter", *options)
    assert (ran.status, ran.err.count("\n")) == (status, 1), ran.err


def test_wrong_times_are_one_line(pool: PoolMount) -> None:
    ran = run_cli("exporter", "--once", pool.name, env={**pool.env, VARIABLE: '{"exporter": {"request_s": -1}}'})
    assert (ran.status, ran.err.count("\n")) == (2, 1), ran.err
    assert f"${VARIABLE}: exporter.request_s: -1 is not a time; " in ran.err


def test_an_address_in_use_is_one_line(pool: PoolMount, exporter: RunningExporter) -> None:
    ran = pool.cli("exporter", "--listen", f"{HOST}:{exporter.port}")
    assert (ran.status, ran.err.count("\n")) == (4, 1), ran.err
    assert "cannot listen there" in ran.err
