"""`commitlogfs restore`: gaps of a mounted log are filled from elsewhere."""

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import s3_server
from support.command_line import COMMAND
from support.disk_life import recorded_identity
from support.fuse_backup import fuse_backup
from support.kept import KeptMount
from support.pools import MIB, PoolMount, pool_in
from support.records import make_sealed
from support.scrubs import FAST
from support.waiting import PATIENCE_S, eventually

from commitlogfs.mount.location import control_socket
from commitlogfs.store import layout

pytestmark = [pytest.mark.mounted, pytest.mark.root]

STORED_MS = 1_700_000_000_456
ENDED_S = 2.0
"""Time after an interrupt until the daemon copies nothing more."""
FAILED_S = 1.0
"""The same, until a restore that waits for a move has ended."""


def content(index: int) -> bytes:
    return make_sealed(index * MIB, MIB, store_ms=STORED_MS + index)


def stored_ns(index: int) -> int:
    """When the last message of a segment was stored."""
    return (STORED_MS + index) * 1_000_000


def indexes(pool: PoolMount) -> list[int]:
    return sorted(int(name) // MIB for name in os.listdir(pool.mountpoint))


def fill(pool: PoolMount) -> None:
    """Nine segments in turn on its disks."""
    pool.make_segments(range(9))
    for index in range(9):
        with pool.path(index).open("r+b") as file:
            file.write(content(index))
        os.utime(pool.path(index), ns=(stored_ns(index), stored_ns(index)))


@pytest.fixture
def kept(keep: Callable[..., KeptMount]) -> KeptMount:
    """Nine segments in turn on three disks."""
    kept = keep(3)
    fill(kept.pool)
    return kept


@pytest.fixture(scope="module")
def holed(module_directory: Path) -> Iterator[PoolMount]:
    """Such a mount without its fifth segment, for tests that restore nothing."""
    with pool_in(module_directory) as pool:
        pool.start()
        fill(pool)
        lose(pool, 4)
        yield pool


@pytest.fixture
def slave(workdir: Path) -> Iterator[Path]:
    """A slave's directory, which has the same segments."""
    directory = workdir / "slave"
    directory.mkdir()
    for index in range(9):
        (directory / f"{index * MIB:020d}").write_bytes(content(index))
    yield directory
    shutil.rmtree(directory)


def gap_codes(pool: PoolMount) -> set[str]:
    return {finding["code"] for finding in pool.status()["findings"]} & {"gap", "accepted-loss"}


def lose(pool: PoolMount, *lost: int) -> None:
    for index in lost:
        pool.path(index).unlink()


def restore(pool: PoolMount, *options: object, status: int = 0) -> str:
    """Use a rate: without one, a move slows down on a busy machine."""
    ran = pool.cli("restore", pool.name, "--rate", FAST, *options)
    assert ran.status == status, ran.err
    return ran.out + ran.err


@contextmanager
def spawned(pool: PoolMount, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    command = [*COMMAND, *map(str, arguments)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **pool.env}
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def files_of(pool: PoolMount, index: int) -> list[Path]:
    return [
        Path(disk) / f"{index * MIB:020d}" for disk in pool.disks if (Path(disk) / f"{index * MIB:020d}").exists()
    ]


def test_the_gaps_are_filled_byte_for_byte(kept: KeptMount, slave: Path) -> None:
    pool = kept.pool
    os.chmod(pool.path(3), 0o640)
    lose(pool, 2, 4, 5)
    assert restore(pool, "--from", slave, "--dry-run") == "test: 3 segments would be restored (3.0 MiB)\n"
    assert indexes(pool) == [0, 1, 3, 6, 7, 8]
    assert restore(pool, "--from", slave) == "test: 3 segments restored (3.0 MiB)\n"
    assert indexes(pool) == list(range(9))
    for index in range(9):
        assert pool.path(index).read_bytes() == content(index)
    (restored,) = files_of(pool, 4)
    found = restored.stat()
    assert found.st_mtime_ns == stored_ns(4)  # a broker's clock for its age
    assert stat.S_IMODE(found.st_mode) == 0o640  # of the segment before
    assert {*os.listxattr(restored)} == {layout.XATTR_RESTORED, layout.XATTR_CHECKSUM}
    with pool.path(4).open("rb"):
        assert layout.XATTR_RESTORED in os.listxattr(restored)
    with pool.path(4).open("r+b"):  # as a broker opens it
        assert os.listxattr(restored) == [layout.XATTR_CHECKSUM]
    status = pool.status()
    assert (status["segments"]["gaps"], status["moves"]["restored"]) == ([], 3)
    assert restore(pool, "--from", slave) == "test: the log has no gap\n"


def test_a_restored_log_is_whole_for_the_next_daemon_and_for_check(kept: KeptMount, slave: Path) -> None:
    pool = kept.pool
    lose(pool, 4)
    restore(pool, "--from", slave)
    kept.replace()
    assert pool.path(4).read_bytes() == content(4)
    assert gap_codes(pool) == set()
    checked = pool.cli("check", pool.config).out
    assert "9 segments" in checked
    assert "gap" not in checked


def test_an_accepted_loss_is_closed_from_a_slave(kept: KeptMount, slave: Path) -> None:
    """A dead disk is given up, and what it held comes back."""
    pool = kept.pool
    gone = pool.disks[1]
    kept.end()
    gone.rename(gone.with_name(f"{gone.name}.hidden"))
    given_up = pool.cli("disk", "remove", 2, pool.config, "--lost", "--yes")
    assert given_up.status == 0, given_up.err
    pool.disks = [disk for disk in pool.disks if disk != gone]
    pool.start("--watchdog", "0")
    assert indexes(pool) == [0, 2, 3, 5, 6, 8]
    assert pool.status()["segments"]["accepted_gaps"] == 3
    assert gap_codes(pool) == {"accepted-loss"}
    (slave / f"{4 * MIB:020d}").rename(slave / "elsewhere")
    restore(pool, "--from", slave, status=1)
    assert [f["file"] for f in pool.status()["findings"] if f["code"] == "accepted-loss"] == [f"{4 * MIB:020d}"]
    (slave / "elsewhere").rename(slave / f"{4 * MIB:020d}")
    restore(pool, "--from", slave)
    assert indexes(pool) == list(range(9))
    status = pool.status()
    assert (status["segments"]["gaps"], status["segments"]["accepted_gaps"]) == ([], 0)
    assert gap_codes(pool) == set()
    for index in range(9):
        assert pool.path(index).read_bytes() == content(index)


def test_a_restored_segment_that_is_lost_again_is_no_accepted_loss(kept: KeptMount, slave: Path) -> None:
    pool = kept.pool
    gone = pool.disks[1]
    kept.end()
    gone.rename(gone.with_name(f"{gone.name}.hidden"))
    assert pool.cli("disk", "remove", 2, pool.config, "--lost", "--yes").status == 0
    pool.disks = [disk for disk in pool.disks if disk != gone]
    pool.start("--watchdog", "0")
    (slave / f"{7 * MIB:020d}").unlink()
    restore(pool, "--from", slave, status=1)
    eventually(lambda: all(lost_runs(disk) == [[[7, 1, 1, 1]]] for disk in pool.disks))
    kept.end()
    (lost,) = files_of(pool, 4)
    lost.unlink()
    ran = pool.cli("check", pool.config, "--json")
    assert ran.status == 1
    codes = {f["file"]: f["code"] for f in ran.json()["findings"] if f["code"] in ("gap", "accepted-loss")}
    assert codes == {f"{4 * MIB:020d}": "gap", f"{7 * MIB:020d}": "accepted-loss"}
    assert pool.cli("mount", pool.config).status == 4


def lost_runs(disk: Path | str) -> list[object]:
    """The segments of each accepted loss, as a disk records them."""
    return [loss[3] for loss in recorded_identity(Path(disk))["losses"]]


def test_a_missing_disk_may_hold_the_segments(keep: Callable[..., KeptMount], slave: Path) -> None:
    kept = keep(3, settings={"on_missing": '"degraded"'})
    pool = kept.pool
    pool.make_segments(range(9))
    gone = pool.disks[1]
    hidden = gone.with_name(f"{gone.name}.hidden")
    kept.end()
    gone.rename(hidden)
    pool.start("--watchdog", "0")
    out = restore(pool, "--from", slave, status=4)
    assert out.startswith(f"commitlogfs: test: {gone}: missing, and may hold what is missing in the log; ")
    hidden.rename(gone)


def test_damaged_copies_are_named_and_another_place_is_tried(kept: KeptMount, slave: Path, workdir: Path) -> None:
    pool = kept.pool
    lose(pool, 2, 4, 6)
    backup = workdir / "backup"
    shutil.copytree(slave, backup)
    damaged = bytearray(content(4))
    damaged[100] ^= 1
    (slave / f"{4 * MIB:020d}").write_bytes(damaged)
    (slave / f"{6 * MIB:020d}").write_bytes(content(6)[:-1])  # of another size: not a copy
    for options in (["--dry-run"], []):
        out = restore(pool, "--from", slave, *options, status=1)
        reason = f"log offset {4 * MIB}: the checksum of the message is wrong"
        assert f"{4 * MIB:020d}: not taken from {slave}: {reason}" in out
        assert f"still missing: {6 * MIB:020d}, {4 * MIB:020d}; name other places with --from" in out
    assert indexes(pool) == [0, 1, 2, 3, 5, 7, 8]
    document = json.loads(restore(pool, "--from", slave, "--from", backup, "--json"))
    assert document == {
        "name": "test",
        "dry_run": False,
        "restored": [{"segment": f"{i * MIB:020d}", "from": str(backup)} for i in (6, 4)],
        "missing": [],
        "repaired": [],
        "damaged": [],
    }
    assert pool.path(4).read_bytes() == content(4)


@pytest.mark.full
def test_without_a_rate_a_restore_ends_too(kept: KeptMount, slave: Path) -> None:
    """It gives way to other users of the disks."""
    pool = kept.pool
    lose(pool, 2, 4, 5)
    ran = pool.cli("restore", pool.name, "--from", slave)
    assert (ran.status, ran.out) == (0, "test: 3 segments restored (3.0 MiB)\n"), ran.err
    for index in range(9):
        assert pool.path(index).read_bytes() == content(index)


def test_the_segment_that_a_slave_still_writes_is_not_taken(kept: KeptMount, slave: Path) -> None:
    pool = kept.pool
    lose(pool, 4)
    unsealed = content(4)[: MIB // 2]
    (slave / f"{4 * MIB:020d}").write_bytes(unsealed.ljust(MIB, b"\0"))
    out = restore(pool, "--from", slave, status=1)
    assert "not taken from" in out
    assert indexes(pool) == [0, 1, 2, 3, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("place", "status", "said"),
    [
        ("{slave}/none", 2, "--from {slave}/none: No such file or directory; give the directory of a log"),
        ("{slave}/00000000000000000000", 2, "Not a directory; give the directory of a log"),
        ("", 2, "a path is empty; write the path, or . for the current directory"),
        ("{slave}/..", 1, "still missing"),
        ("{root}", 2, "--from {root}: holds no segments; the log is probably {root}/commitlog"),
        ("nothing://x", 2, "--from nothing://x: "),
    ],
)
def test_a_wrong_place_is_named(
    holed: PoolMount, slave: Path, workdir: Path, place: str, status: int, said: str
) -> None:
    (workdir / "root" / "commitlog").mkdir(parents=True)
    names = {"slave": slave, "root": workdir / "root"}
    out = restore(holed, "--from", place.format(**names), status=status)
    assert said.format(**names) in out
    assert indexes(holed) == [0, 1, 2, 3, 5, 6, 7, 8]


def test_a_wrong_place_is_named_for_a_log_without_gap(kept: KeptMount, slave: Path) -> None:
    assert "No such file or directory" in restore(kept.pool, "--from", slave / "none", status=2)


def test_a_file_uri_is_a_directory(kept: KeptMount, slave: Path) -> None:
    lose(kept.pool, 2)
    assert restore(kept.pool, "--from", f"file://{slave}") == "test: 1 segment restored (1.0 MiB)\n"
    assert kept.pool.path(2).read_bytes() == content(2)


@pytest.mark.skipif(bool(s3_server.lack()), reason=s3_server.lack())
def test_segments_come_from_an_object_store(kept: KeptMount, slave: Path, workdir: Path) -> None:
    pool = kept.pool
    lose(pool, 2, 4, 5)
    spool = workdir / "spool"
    spool.mkdir()
    with s3_server.s3_server(workdir) as endpoint:
        bucket = s3_server.bucket_of(endpoint)
        bucket.create_dir("archive")
        for index in (2, 5):
            with bucket.open_output_stream(f"archive/log/{index * MIB:020d}") as file:
                file.write(content(index))
        out = restore(pool, "--from", s3_server.uri(endpoint, "archive", "log"), "--spool", spool, status=1)
        assert f"2 segments restored (2.0 MiB); still missing: {4 * MIB:020d}" in out
        lose(pool, 5)
        gone = s3_server.uri(endpoint, "archive", "none")
        assert "--from s3://" in restore(pool, "--from", gone, status=2)
    assert pool.path(2).read_bytes() == content(2)
    assert os.listdir(spool) == []
    refused = restore(pool, "--from", s3_server.uri(endpoint, "archive", "log"), status=4)
    assert "--from s3://archive/log: " in refused  # the server has ended


def test_no_place_is_a_usage_error(kept: KeptMount) -> None:
    assert "name at least one directory or URI" in restore(kept.pool, status=2)


@pytest.mark.full
def test_a_killed_daemon_is_waited_for(kept: KeptMount, slave: Path) -> None:
    pool = kept.pool
    lose(pool, 2, 4, 5)
    with spawned(pool, "restore", pool.name, "--from", slave, "--rate", "512KiB") as command:
        eventually(lambda: pool.status()["moves"]["current"] is not None)
        kept.replace()
        assert command.wait(PATIENCE_S) == 0
    for index in range(9):
        assert pool.path(index).read_bytes() == content(index)
        assert len(files_of(pool, index)) == 1


@pytest.mark.parametrize(
    "ended_s",
    [pytest.param(PATIENCE_S, id="works"), pytest.param(ENDED_S, id="in_time", marks=pytest.mark.timing)],
)
def test_an_interrupted_command_leaves_nothing_half_done(kept: KeptMount, slave: Path, ended_s: float) -> None:
    pool = kept.pool
    lose(pool, 2, 4, 5)
    with spawned(pool, "restore", pool.name, "--from", slave, "--rate", "32KiB") as command:
        eventually(lambda: pool.status()["moves"]["current"] is not None)
        command.send_signal(signal.SIGINT)
        assert command.wait(PATIENCE_S) == 130
        assert command.stdout is not None
        said = "the restore has ended; repeat the command to restore what is still missing\n"
        assert command.stdout.read().endswith(said)
    eventually(lambda: pool.status()["moves"]["current"] is None, ended_s)
    assert indexes(pool) == [0, 1, 3, 6, 7, 8]
    restore(pool, "--from", slave)
    assert indexes(pool) == list(range(9))


# --- the log changes during a restore --------------------------------------------------------------------


@contextmanager
def slow_restore(pool: PoolMount, place: Path) -> Iterator[subprocess.Popen[str]]:
    """A restore that takes half a minute for a segment, with its copy begun."""
    with spawned(pool, "restore", pool.name, "--from", place, "--rate", "32KiB") as command:
        eventually(lambda: pool.status()["moves"]["current"] is not None)
        yield command


@pytest.mark.parametrize(
    ("missing", "removed", "left"),
    [
        pytest.param(4, (5, 6, 7, 8), [0, 1, 2, 3], id="the_log_is_cut"),
        pytest.param(1, (0, 2, 3), [4, 5, 6, 7, 8], id="the_oldest_expire"),
    ],
)
def test_a_segment_that_is_in_no_gap_any_more_is_not_added(
    kept: KeptMount, slave: Path, missing: int, removed: tuple[int, ...], left: list[int]
) -> None:
    pool = kept.pool
    lose(pool, missing)
    with slow_restore(pool, slave) as command:
        lose(pool, *removed)
        out, _ = command.communicate(timeout=PATIENCE_S)
    assert command.returncode == 1
    assert f"{missing * MIB:020d}: not taken from {slave}: " in out
    assert "is in no gap of the log" in out
    assert indexes(pool) == left
    kept.replace()
    assert pool.status()["segments"]["gaps"] == []


def test_a_restored_segment_leaves_with_those_around_it(kept: KeptMount, slave: Path) -> None:
    """The broker does not know it, and removes the others."""
    pool = kept.pool
    lose(pool, 3, 4)
    restore(pool, "--from", slave)
    with pool.path(3).open("rb"):  # a reader
        kept.replace()
        lose(pool, 0, 1, 2)
        assert indexes(pool) == [3, 4, 5, 6, 7, 8]
        lose(pool, 5)
        assert indexes(pool) == [6, 7, 8]
    eventually(lambda: pool.log_since_start().count("reason=left-over") == 2)
    entries = pool.ask("decisions", kind="removed")["decisions"]
    assert [one["facts"]["reason"] for one in entries][:3] == ["unlink", "left-over", "left-over"]
    assert f"before {5 * MIB:020d}, which it removes" in entries[1]["text"]
    assert len(pool.ask("decisions", kind="restored")["decisions"]) == 2  # by a former daemon
    assert pool.status()["segments"]["gaps"] == []


def test_a_restored_segment_that_was_opened_is_kept(kept: KeptMount, slave: Path) -> None:
    pool = kept.pool
    lose(pool, 4)
    restore(pool, "--from", slave)
    with pool.path(4).open("r+b"):  # a broker that was restarted
        lose(pool, 0, 1, 2, 3, 5)
        assert indexes(pool) == [4, 6, 7, 8]


# --- whose segments they are -----------------------------------------------------------------------------


def of_another_broker(directory: Path, *which: int) -> Path:
    directory.mkdir()
    for index in which:
        foreign = make_sealed(index * MIB, MIB, topic=b"OtherCluster", stored=("9.9.9.9", 1))
        (directory / f"{index * MIB:020d}").write_bytes(foreign)
    return directory


def test_a_place_with_another_log_is_refused(kept: KeptMount, workdir: Path) -> None:
    pool = kept.pool
    lose(pool, 4)
    other = of_another_broker(workdir / "other", *range(9))
    out = restore(pool, "--from", other, status=4)
    assert f"--from {other}: {3 * MIB:020d} begins with another message than in the log" in out
    assert out.count("\n") == 1
    assert indexes(pool) == [0, 1, 2, 3, 5, 6, 7, 8]


def test_a_lone_segment_of_another_broker_is_refused(kept: KeptMount, slave: Path, workdir: Path) -> None:
    pool = kept.pool
    lose(pool, 4)
    other = of_another_broker(workdir / "other", 4)
    out = restore(pool, "--from", other, status=1)
    assert f"its first message was stored by 9.9.9.9:1, that of {3 * MIB:020d} by 127.0.0.1:10911" in out
    alone = workdir / "alone"
    alone.mkdir()
    shutil.copy(slave / f"{4 * MIB:020d}", alone)
    restore(pool, "--from", alone)
    assert pool.path(4).read_bytes() == content(4)


@pytest.mark.parametrize("later_ms", [86_400_000, -86_400_000], ids=["later", "earlier"])
def test_a_lone_segment_of_another_time_is_refused(kept: KeptMount, workdir: Path, later_ms: int) -> None:
    """The same broker has had another log: its address fits, and the segment is sound."""
    pool = kept.pool
    lose(pool, 4)
    other = workdir / "other"
    other.mkdir()
    (other / f"{4 * MIB:020d}").write_bytes(make_sealed(4 * MIB, MIB, store_ms=STORED_MS + later_ms))
    out = restore(pool, "--from", other, status=1)
    side, neighbour = ("before", 3) if later_ms < 0 else ("after", 5)
    assert f", {side} those of {neighbour * MIB:020d} (" in out
    assert "another history of the log; if it is not, put a segment beside it that the log has" in out
    assert indexes(pool) == [0, 1, 2, 3, 5, 6, 7, 8]
    shutil.copy(pool.path(3), other)
    restore(pool, "--from", other)
    assert indexes(pool) == list(range(9))


@pytest.mark.parametrize(
    ("stored_ms", "index"), [(1_700_000_000_456 | 1 << 61, 5), (4_000_000_000_000, 5), (-1, 3), (1, 3)]
)
def test_a_wrong_store_time_is_bounded_by_the_neighbours(
    kept: KeptMount, workdir: Path, stored_ms: int, index: int
) -> None:
    pool = kept.pool
    lose(pool, 4)
    other = workdir / "other"
    other.mkdir()
    (other / f"{4 * MIB:020d}").write_bytes(make_sealed(4 * MIB, MIB, store_ms=stored_ms))
    shutil.copy(pool.path(3), other)  # the broker's clock was wrong: this shows that it is the same log
    restore(pool, "--from", other)
    assert pool.path(4).stat().st_mtime_ns == stored_ns(index)


# --- several commands ------------------------------------------------------------------------------------


@pytest.mark.full
def test_an_interrupted_command_does_not_cancel_another_one(kept: KeptMount, slave: Path) -> None:
    pool = kept.pool
    lose(pool, 4)
    with slow_restore(pool, slave) as first:
        with spawned(pool, "restore", pool.name, "--from", slave, "--rate", FAST) as second:
            eventually(lambda: has_open(second, slave / f"{4 * MIB:020d}"))
            second.send_signal(signal.SIGINT)
            assert second.wait(PATIENCE_S) == 130
        of_another = {"base_offset": 4 * MIB, "token": "0"}
        assert pool.ask("restore-cancel", **of_another) == {"cancelled": False}
        assert first.wait(PATIENCE_S) == 0
    assert indexes(pool) == list(range(9))


def has_open(command: subprocess.Popen[str], path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):  # it has ended
        for link in Path(f"/proc/{command.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if link.readlink() == path:
                    return True
    return False


@pytest.mark.parametrize(
    "failed_s",
    [pytest.param(PATIENCE_S, id="works"), pytest.param(FAILED_S, id="in_time", marks=pytest.mark.timing)],
)
def test_a_restore_that_waits_for_a_move_is_cancelled(kept: KeptMount, slave: Path, failed_s: float) -> None:
    pool = kept.pool
    lose(pool, 4)
    assert pool.cli("disk", "drain", pool.disks[0], pool.name, "--rate", "4KiB").status == 0
    eventually(lambda: pool.status()["moves"]["current"] is not None)
    moved = pool.status()["moves"]["current"]["segment"]
    with spawned(pool, "restore", pool.name, "--from", slave, "--rate", FAST) as command:
        eventually(lambda: pool.ask("restore-state", base_offset=4 * MIB)["state"] == "running")
        eventually(lambda: pool.status()["moves"]["current"]["done_bytes"] > 0)
        assert pool.ask("restore-state", base_offset=4 * MIB)["done_bytes"] == 0
        command.send_signal(signal.SIGINT)
        assert command.wait(PATIENCE_S) == 130
    eventually(lambda: pool.ask("restore-state", base_offset=4 * MIB)["state"] == "failed", failed_s)
    assert pool.status()["moves"]["current"]["segment"] == moved
    with spawned(pool, "restore", pool.name, "--from", slave, "--rate", FAST) as again:
        eventually(lambda: pool.ask("restore-state", base_offset=4 * MIB)["state"] == "running")
        assert pool.cli("disk", "cancel", pool.disks[0], pool.name).status == 0
        assert again.wait(PATIENCE_S) == 0
    assert indexes(pool) == list(range(9))


@pytest.mark.full
def test_a_refusal_of_one_segment_does_not_end_the_command(kept: KeptMount, slave: Path) -> None:
    """Another command restores a segment at that time."""
    pool = kept.pool
    lose(pool, 2, 4)
    (slave / f"{4 * MIB:020d}").rename(slave / "elsewhere")
    with slow_restore(pool, slave) as first:
        (slave / "elsewhere").rename(slave / f"{4 * MIB:020d}")
        out = restore(pool, "--from", slave, status=1)
        assert f"{4 * MIB:020d}: not taken from {slave}: test: {4 * MIB:020d}: another restore is under way" in out
        assert f"1 segment restored (1.0 MiB); still missing: {4 * MIB:020d}" in out
        assert first.wait(PATIENCE_S) == 1


# --- filesystems that may hang ---------------------------------------------------------------------------


@pytest.mark.full
def test_a_backup_that_stalls_does_not_concern_the_daemon(kept: KeptMount, slave: Path, workdir: Path) -> None:
    pool = kept.pool
    lose(pool, 4)
    backup, spool = workdir / "backup", workdir / "spool"
    backup.mkdir()
    spool.mkdir()
    with fuse_backup(backup, slave) as server:
        options = ["--from", backup, "--rate", "256KiB", "--spool", spool]
        with spawned(pool, "restore", pool.name, *options) as restoring:
            eventually(lambda: pool.status()["moves"]["current"] is not None)
            server.send_signal(signal.SIGSTOP)
            kept.replace()
            assert restoring.wait(PATIENCE_S) == 0
    assert pool.path(4).read_bytes() == content(4)


def test_the_daemon_refuses_a_file_of_a_remote_filesystem(kept: KeptMount, slave: Path, workdir: Path) -> None:
    pool = kept.pool
    lose(pool, 4)
    backup = workdir / "backup"
    backup.mkdir()
    with fuse_backup(backup, slave):
        fd = os.open(backup / f"{4 * MIB:020d}", os.O_RDONLY)
        hand_in_remote(pool, fd)
        pool.make_segments([9])
        os.close(fd)
    restore(pool, "--from", slave)


def hand_in_remote(pool: PoolMount, fd: int) -> None:
    arguments = {"base_offset": 4 * MIB, "mtime_ns": 1, "xxh3": "00" * 16, "token": ""}
    answer = control_socket.ask_with(pool.socket, "restore-segment", [fd], PATIENCE_S, **arguments)
    assert answer["refused"].startswith(f"{4 * MIB:020d}: its file is not on a local filesystem")


@pytest.mark.timing
def test_the_close_of_a_remote_file_delays_no_create(kept: KeptMount, slave: Path, workdir: Path) -> None:
    pool = kept.pool
    lose(pool, 4)
    backup = workdir / "backup"
    backup.mkdir()
    with fuse_backup(backup, slave, close_s=3.0):
        fd = os.open(backup / f"{4 * MIB:020d}", os.O_RDONLY)
        hand_in_remote(pool, fd)
        began = time.monotonic()
        pool.make_segments([9])  # while the daemon closes the file, which takes 3 s
        assert time.monotonic() - began < 1.5
        os.close(fd)


# --- texts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("s3://AKIAKEY:SECRET/KEY@bucket:x/path", "--from s3://bucket:x/path: "),
        ("s3://AKIAKEY:SECRETKEY@bucket/log?nonsense=1", "--from s3://bucket/log: "),
        ("nothing://AKIAKEY:SECRETKEY@host", "--from nothing://host: "),
        ("s3://AKIAKEY:SECRETKEY@[::1/log", "--from s3://[::1/log: Invalid IPv6 URL"),
        ("file://elsewhere/data", "--from file://elsewhere/data: is on another machine"),
    ],
)
def test_a_wrong_uri_is_named_without_its_keys(holed: PoolMount, place: str, said: str) -> None:
    out = restore(holed, "--from", place, status=2)
    assert said in out
    assert out.count("\n") == 1
    assert not any(key in out for key in ("AKIAKEY", "SECRET", "KEY"))


def test_a_given_up_disk_that_had_the_newest_segment_fills_its_gaps(kept: KeptMount) -> None:
    """The broker has given the log offsets of its newest segment to other messages. Those stay."""
    pool = kept.pool
    kept.end()
    *pool.disks, lost = pool.disks
    old = lost.with_name("old")
    lost.rename(old)
    assert pool.cli("disk", "remove", "--lost", "--yes", 3, pool.config).status == 0
    kept.start()
    assert "newest-segment-missing" not in [finding["code"] for finding in pool.status()["findings"]]
    pool.make_segments(range(8, 11))
    others = {
        index: make_sealed(index * MIB, MIB, store_ms=STORED_MS + 1000 + index, topic=b"AfterLoss")
        for index in range(8, 11)
    }
    for index, data in others.items():
        with pool.path(index).open("r+b") as file:
            file.write(data)
    copy_without_identity = old.with_name("copy")
    shutil.copytree(old, copy_without_identity)
    os.removexattr(copy_without_identity, layout.XATTR_IDENTITY)
    refused = pool.cli("restore", pool.name, "--from", copy_without_identity)
    assert (refused.status, "not a copy of this log" in refused.err) == (4, True)
    ran = pool.cli("restore", pool.name, "--from", old)
    assert ran.status == 0, ran.err
    assert indexes(pool) == list(range(11))
    assert all(pool.path(index).read_bytes() == content(index) for index in (2, 5))
    assert pool.path(8).read_bytes() == others[8]
