"""The control socket: who may talk, and what a bad, slow or greedy peer can do to the others (nothing)."""

import json
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.pools import PoolMount
from support.waiting import PATIENCE_S

from commitlogfs.mount.location import control_socket

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

NOBODY = 65534
ANSWER_S = 5.0
"""Time of an answer, on a machine that has nothing else to do."""

_ASK_AS_STRANGER = """
import os, socket, sys
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
try:
    peer.connect(sys.argv[1])
    peer.send(b'{"verb": "status"}')
    print(peer.recv(65536).decode())
except PermissionError:
    print("permission denied")
"""


def path_of(pool: PoolMount) -> Path:
    return pool.runtime / f"{pool.name}.sock"


@contextmanager
def connected(pool: PoolMount) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.settimeout(PATIENCE_S)
        peer.connect(os.fspath(path_of(pool)))
        yield peer


def answer_to(pool: PoolMount, packet: bytes) -> object:
    with connected(pool) as peer:
        peer.send(packet)
        return json.loads(peer.recv(65536)[1:])


def still_serves(pool: PoolMount) -> None:
    assert control_socket.ask(path_of(pool), "status", PATIENCE_S)["name"] == pool.name
    os.statvfs(pool.mountpoint)


def serves_soon(pool: PoolMount) -> None:
    started = time.monotonic()
    still_serves(pool)
    assert time.monotonic() - started < ANSWER_S


Check = Callable[[PoolMount], None]
with_checks = pytest.mark.parametrize(
    "check", [still_serves, pytest.param(serves_soon, marks=pytest.mark.timing)], ids=["works", "in time"]
)


def test_modes(shared: PoolMount) -> None:
    assert stat.S_IMODE(path_of(shared).parent.stat().st_mode) == 0o711
    assert stat.S_IMODE(path_of(shared).stat().st_mode) == 0o600
    assert path_of(shared).parent.stat().st_uid == 0


def test_a_stranger_is_kept_out_twice(shared: PoolMount) -> None:
    """By the file modes, and where those are loosened by the peer's credentials, with a message."""
    ask: list[str | Path] = [sys.executable, "-c", _ASK_AS_STRANGER, path_of(shared)]
    assert subprocess.run(ask, capture_output=True, text=True, check=True).stdout == "permission denied\n"
    path_of(shared).chmod(0o666)
    try:
        done = subprocess.run(ask, capture_output=True, text=True, check=True)
    finally:
        path_of(shared).chmod(0o600)
    assert json.loads(done.stdout[1:]) == {
        "error": f"user {NOBODY} may not control this daemon; run as root or its user"
    }
    shared.require_logged("event=control_peer_refused")
    shared.require_logged(f"uid={NOBODY}")


PACKETS = {
    "garbage": b"\xff\x00\x13",
    "not JSON": b"status",
    "not UTF-8": b'{"verb": "\xff"}',
    "an array": b"[1, 2]",
    "a number": b"1",
    "null": b"null",
    "no verb": b"{}",
    "verb of a wrong type": b'{"verb": 7}',
    "verb that cannot be a key": b'{"verb": ["status"]}',
    "unknown verb": b'{"verb": "__class__"}',
    "deep nesting": b"[" * 4000,
    "deep object": b'{"verb":' * 500,
    "as long as is allowed": b'{"verb": "x"' + b" " * (control_socket.MAX_REQUEST_BYTES - 13) + b"}",
    "too long": b'{"verb": "status", "x": "' + b"x" * 8000 + b'"}',
    "huge": b"x" * 100_000,
    "locate nothing": b'{"verb": "locate"}',
    "locate a wrong type": b'{"verb": "locate", "target": {"a": []}}',
    "locate a huge number": b'{"verb": "locate", "target": "' + b"9" * 4000 + b'"}',
    "locate a negative number": b'{"verb": "locate", "target": "-1"}',
    "not a number": b'{"verb": NaN}',
}


@pytest.mark.parametrize("packet", PACKETS.values(), ids=PACKETS)
@with_checks
def test_a_bad_packet_gets_one_line_back(shared: PoolMount, check: Check, packet: bytes) -> None:
    answer = answer_to(shared, packet)
    assert isinstance(answer, dict)
    assert list(answer) == ["error"]
    assert "\n" not in answer["error"]
    assert "Error" not in answer["error"], "an unforeseen exception's name"
    check(shared)
    assert "traceback" not in shared.log_since_start()


BAD_VALUES: dict[str, tuple[object, ...]] = {
    "number": (-1, 1.5, True, "5", None, [], {}, 2**63, 10**300, float("nan"), float("inf")),
    "numbers": ("5", 5, {}, [-1], [1.5], [True], ["5"], [[]], [None], [2**63]),
    "flag": (1, 0, "no", None, [], {}),
    "text": (1, True, None, [], {}, "a\0b", "\ud800"),
    "disk": (-1, 1.5, True, None, [], {}, "a\0b", "\ud800", 2**63),
    "choice": (1, True, None, [], {}, "", "COPY", "__class__"),
    "digest": (1, None, [], {}, "", "00", "x" * 32, "\uff10" * 32),
}
REQUESTS: dict[str, dict[str, str]] = {
    "scrub-start": {"rate": "number", "messages": "flag", "dry_run": "flag"},
    "scrub-pause": {"rate": "number", "dry_run": "flag"},
    "scrub-resume": {"rate": "number", "dry_run": "flag"},
    "scrub-cancel": {"rate": "number", "dry_run": "flag"},
    "scrub-clear": {"segments": "numbers", "dry_run": "flag"},
    "disk-cordon": {"disk": "disk", "reason": "text", "dry_run": "flag"},
    "disk-uncordon": {"disk": "disk", "stays": "flag", "dry_run": "flag"},
    "disk-drain": {
        "disk": "disk",
        "mode": "choice",
        "rate": "number",
        "more_room": "number",
        "has_room": "flag",
        "dry_run": "flag",
    },
    "disk-cancel": {"disk": "disk", "dry_run": "flag"},
    "disk-leave": {"disk": "disk", "dry_run": "flag"},
    "disk-stay": {"disk": "disk"},
    "disk-give-up": {"disk": "disk", "dry_run": "flag"},
    "disk-content": {"disk": "disk"},
    "disk-prepare": {"directory": "text", "instead_of": "text", "dry_run": "flag"},
    "disk-forget": {"directory": "text", "dry_run": "flag"},
    "rebalance-start": {"mode": "choice", "rate": "number", "dry_run": "flag"},
    "rebalance-cancel": {"dry_run": "flag"},
    "rebalance-plan": {"mode": "choice", "rate": "number"},
    "restore-segment": {
        "base_offset": "number",
        "mtime_ns": "number",
        "xxh3": "digest",
        "rate": "number",
        "token": "text",
    },
    "restore-state": {"base_offset": "number"},
    "restore-cancel": {"base_offset": "number", "token": "text"},
    "restart": {"force": "flag"},
    "restart-plan": {"force": "flag"},
}
RIGHT_VALUES: dict[str, object] = {
    "disk": 1,
    "mode": "copy",
    "base_offset": 0,
    "mtime_ns": 0,
    "xxh3": "00" * 16,
    "token": "",
    "directory": "/nonexistent",
}
"""Values of the fields without a default."""


@pytest.mark.parametrize("verb", REQUESTS)
def test_a_wrong_field_changes_nothing(shared: PoolMount, verb: str) -> None:
    fields = REQUESTS[verb]
    before = state_of(shared)
    for key, kind in fields.items():
        for value in BAD_VALUES[kind]:
            right = {name: RIGHT_VALUES[name] for name in fields if name in RIGHT_VALUES}
            packet = json.dumps({"verb": verb, **right, key: value}).encode()
            answer = answer_to(shared, packet)
            assert isinstance(answer, dict)
            assert list(answer) == ["error"], packet
            assert answer["error"].startswith(f"{key}: "), packet
            assert answer["error"].isascii()
            assert answer["error"].isprintable(), packet
    assert state_of(shared) == before
    assert "traceback" not in shared.log_since_start()


def state_of(pool: PoolMount) -> object:
    document = control_socket.ask(path_of(pool), "status", PATIENCE_S)
    disks = [(disk["path"], disk["state"]) for disk in document["disks"]]
    return document["daemon"]["pid"], disks, document["scrub"]["state"], document["rebalance"]


@with_checks
def test_an_empty_packet_and_a_hang_up(shared: PoolMount, check: Check) -> None:
    with connected(shared) as peer:
        peer.send(b"")
        assert peer.recv(100) == b""
    for _ in range(20):
        with connected(shared):
            pass
    with connected(shared) as peer:
        peer.send(b'{"verb": "status"}')  # and does not wait for the answer
    check(shared)


@with_checks
def test_peers_that_never_send_keep_nobody_waiting(shared: PoolMount, check: Check) -> None:
    with ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(connected(shared))
        check(shared)
        shared.make_segments([shared.status()["segments"]["count"]])
        check(shared)


@with_checks
def test_peers_that_never_read_keep_nobody_waiting(shared: PoolMount, check: Check) -> None:
    with ExitStack() as stack:
        for _ in range(50):
            peer = stack.enter_context(connected(shared))
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            peer.send(b'{"verb": "metrics"}')
        check(shared)


def test_descriptors_come_back(shared: PoolMount) -> None:
    assert shared.daemon is not None
    directory = f"/proc/{shared.daemon.pid}/fd"
    still_serves(shared)
    before = len(os.listdir(directory))
    for _ in range(50):
        with connected(shared) as peer:
            peer.send(b"x")
            peer.recv(1000)
    still_serves(shared)
    assert len(os.listdir(directory)) <= before + control_socket.MAX_PEERS
