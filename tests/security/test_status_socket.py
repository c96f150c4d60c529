"""The status socket: its group may read the state of a mount, and change nothing."""

import grp
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.pools import PoolMount
from support.waiting import PATIENCE_S, eventually

from commitlogfs.mount.location import control_socket
from commitlogfs.mount.location.runtime_directory import STATUS_GROUP

pytestmark = [pytest.mark.mounted, pytest.mark.root]

READING = {"status", "segments", "decisions", "metrics"}
CHANGING = ("restart", "disk-cordon", "disk-drain", "scrub-start", "scrub-clear", "rebalance-start", "restore")
NOBODY = 65534

_ASK = """
import os, socket, sys
path, verb, *groups = sys.argv[1:]
os.setgroups([int(group) for group in groups]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
try:
    peer.connect(path)
except PermissionError:
    sys.exit("permission denied")
peer.send(b'{"verb": "%s"}' % verb.encode())
answer = b""
while not answer or packet[:1] == b"+":
    packet = peer.recv(65536)
    answer += packet[1:]
print(answer.decode())
"""


def _mount_namespace(pid: int | str) -> str:
    return os.readlink(f"/proc/{pid}/ns/mnt")


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The group of the status sockets. If the machine lacks it, this test process and its children have it, in a
    list of groups of their own: another run of the tests on this machine may begin or end meanwhile."""
    known = {one.gr_name: one.gr_gid for one in grp.getgrall()}
    if STATUS_GROUP in known:
        yield known[STATUS_GROUP]
        return
    if _mount_namespace("self") == _mount_namespace(os.getppid()):
        pytest.skip("needs a mount namespace of its own: its list of groups would be that of the machine")
    gid = next(number for number in range(900, 1000) if number not in known.values())
    groups, own = Path("/etc/group"), tmp_path_factory.mktemp("etc") / "group"
    own.write_text(f"{groups.read_text()}{STATUS_GROUP}:x:{gid}:\n")
    subprocess.run(["mount", "--bind", own, groups], check=True)
    try:
        yield gid
    finally:
        subprocess.run(["umount", groups], check=True)


@pytest.fixture
def pool(make_pool: Callable[..., PoolMount], group: int) -> PoolMount:
    made = make_pool(2)
    made.start()
    made.make_segments([0, 1, 2])
    return made


def path_of(pool: PoolMount, kind: str = "stat") -> Path:
    return pool.runtime / f"{pool.name}.{kind}"


def ask(pool: PoolMount, verb: str, *groups: int, kind: str = "stat") -> subprocess.CompletedProcess[str]:
    """The answer to a user without rights of his own."""
    asking = [sys.executable, "-c", _ASK, str(path_of(pool, kind)), verb, *map(str, groups)]
    return subprocess.run(asking, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


def test_its_group_reads_and_changes_nothing(pool: PoolMount, group: int) -> None:
    state = path_of(pool).stat()
    assert (stat.S_IMODE(state.st_mode), state.st_uid, state.st_gid) == (0o660, os.geteuid(), group)
    assert json.loads(ask(pool, "status", group).stdout)["name"] == pool.name
    assert len(json.loads(ask(pool, "segments", group).stdout)["segments"]) == 3
    assert "commitlogfs_build_info{" in json.loads(ask(pool, "metrics", group).stdout)["text"]
    assert len(json.loads(ask(pool, "decisions", group).stdout)["decisions"]) >= 4
    for verb in CHANGING:
        assert json.loads(ask(pool, verb, group).stdout) == {
            "error": "this daemon does not know the request; it knows " + ", ".join(sorted(READING))
        }
    for groups, kind in (((), "stat"), ((group,), "sock")):
        refused = ask(pool, "status", *groups, kind=kind)
        assert (refused.returncode, refused.stderr) == (1, "permission denied\n")


def test_silent_peers_keep_no_command_waiting(pool: PoolMount, group: int) -> None:
    peers = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2 * control_socket.MAX_PEERS)]
    try:
        for peer in peers:
            peer.connect(str(path_of(pool)))
        assert control_socket.ask(path_of(pool, "sock"), "status", 5)["name"] == pool.name
        assert control_socket.ask(path_of(pool), "status", 5)["name"] == pool.name
    finally:
        for peer in peers:
            peer.close()


def test_it_is_there_again_after_its_directory_was_removed(pool: PoolMount, group: int) -> None:
    shutil.rmtree(pool.runtime)
    eventually(lambda: path_of(pool).exists() and path_of(pool, "sock").exists())
    found = path_of(pool).stat()
    assert (stat.S_IMODE(found.st_mode), found.st_gid) == (0o660, group)
    assert json.loads(ask(pool, "status", group).stdout)["name"] == pool.name


def test_it_goes_with_the_mount(pool: PoolMount) -> None:
    assert path_of(pool).exists()
    pool.stop()
    assert not path_of(pool).exists()
