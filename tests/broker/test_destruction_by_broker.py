"""The ways in which a broker destroys its own data, each with our guard against it: with the real broker.

Those that need no broker are in test_destruction_refused.py.
"""

import os
import subprocess

import pytest
from support.brokers import IDLE_S, Stand, complaints, digest, fill, line_count, send_all, wait_until
from support.pools import MIB
from support.waiting import PATIENCE_S

from commitlogfs.bench import rocketmq
from commitlogfs.bench.rocketmq import StartFailedError
from commitlogfs.mount.location.guard import GUARD_NAME

pytestmark = [pytest.mark.broker, pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

COUNT = 3000
LOAD_FAILED = 253
"""The broker's exit status (-3) when it refuses its commitlog."""

REFUSED = "create mapped file2 error"
"""CommitLog#asyncPutMessage when the segment it needs next cannot be made."""


@pytest.fixture(scope="module")
def stand(module_stand) -> Stand:
    stand = module_stand(("ext4", "xfs", "ext4"), segment_size=MIB)
    stand.pool.init()
    return stand


@pytest.fixture(scope="module")
def stopped_broker(stand, newest):
    """With COUNT messages of topic "Kept" in its store; everything unmounted."""
    stand.pool.start()
    broker = stand.broker(newest)
    broker.start()
    send_all(newest, stand.names, "Kept", COUNT)
    rocketmq.consume(
        newest, stand.names.address, "Kept", expect=COUNT, idle_timeout_s=IDLE_S
    )  # so the consumequeue is complete
    broker.kill()
    stand.pool.stop()
    return broker


@pytest.fixture
def broker(stand, stopped_broker):
    """Not running, its commitlog mounted; for one test."""
    stand.pool.start()
    yield stopped_broker
    stopped_broker.kill()
    stand.pool.stop()


def check_kept(stand, broker, newest):
    seen = rocketmq.consume(newest, stand.names.address, "Kept", expect=COUNT, idle_timeout_s=IDLE_S)
    assert (seen.distinct, seen.corrupted, seen.skipped) == (COUNT, 0, 0)
    assert complaints(broker) == []


def consumequeue(stand):
    found = digest(stand.pool.mountpoint.parent / "consumequeue")
    assert any(name.startswith("Kept/") for name in found)
    return found


def test_broker_started_before_the_mount_refuses_and_changes_nothing(stand, broker, newest):
    stand.pool.stop()
    before, segments = consumequeue(stand), [digest(directory) for directory in stand.directories()]
    with pytest.raises(StartFailedError, match=f"exited with {LOAD_FAILED}"):
        broker.start()
    assert GUARD_NAME in broker.log_text()
    assert consumequeue(stand) == before
    assert [digest(directory) for directory in stand.directories()] == segments
    assert os.listdir(stand.pool.mountpoint) == [GUARD_NAME]
    stand.pool.start()
    broker.start()
    check_kept(stand, broker, newest)


def test_ready_keeps_a_broker_from_starting_over_a_dead_mount(stand, broker, newest):
    """Over a dead mount a broker sees no commitlog and deletes its consumequeue: ExecStartPre forbids it."""
    pool = stand.pool
    assert pool.cli("ready", pool.config).status == 0
    before = consumequeue(stand)
    pool.kill()
    with pytest.raises(OSError, match="Transport endpoint is not connected"):
        os.listdir(pool.mountpoint)
    dead = pool.cli("ready", pool.config)
    assert dead.status == 3
    assert str(pool.mountpoint) in dead.err
    # systemd's order: the broker is only started when its ExecStartPre succeeds.
    if pool.cli("ready", pool.config, "--wait", "0.5").status == 0:
        broker.start()
    assert not broker.is_running
    assert consumequeue(stand) == before
    pool.start()  # clears the dead mount away
    assert pool.cli("ready", pool.config).status == 0
    pool.stop()
    bare = pool.cli("ready", pool.config)
    assert bare.status == 3
    assert consumequeue(stand) == before
    pool.start()
    broker.start()
    check_kept(stand, broker, newest)


def test_running_broker_whose_mount_is_gone_cannot_write_into_the_bare_directory(stand, broker, newest, workdir):
    broker.start()
    acked = workdir / "acked"
    with rocketmq.start_sender(newest, stand.names.address, "Gone", acked=acked) as sender:
        wait_until(lambda: line_count(acked) >= 500, "sending")
        subprocess.run(["umount", "-l", str(stand.pool.mountpoint)], check=True)
        # It fills what it has open, then needs a new file: two segments later at most.
        wait_until(lambda: REFUSED in broker.log_text().lower(), "the next segment")
        assert os.listdir(stand.pool.mountpoint) == [GUARD_NAME]
        sender.kill()
    broker.kill()
    assert stand.pool.daemon is not None
    assert stand.pool.daemon.wait(PATIENCE_S) == 0  # the last user has gone, and with it the detached mount
    stand.pool.daemon = None
    assert os.listdir(stand.pool.mountpoint) == [GUARD_NAME]
    stand.pool.start()
    broker.start()
    count = line_count(acked)
    seen = rocketmq.consume(newest, stand.names.address, "Gone", expect=count, idle_timeout_s=IDLE_S)
    assert (seen.corrupted, seen.skipped) == (0, 0)
    check_kept(stand, broker, newest)


def test_name_made_but_never_sized_is_not_listed_and_the_broker_continues(stand, broker, newest):
    """Files in the mount and on the disks after a broker was killed between its open and its ftruncate."""
    pool = stand.pool
    names = sorted(os.listdir(pool.mountpoint))
    following = pool.mountpoint / f"{int(names[-1]) + pool.segment_size:020d}"
    os.close(os.open(following, os.O_RDWR | os.O_CREAT, 0o644))
    assert sorted(os.listdir(pool.mountpoint)) == names
    assert following.stat().st_size == 0
    pool.restart()
    assert sorted(os.listdir(pool.mountpoint)) == names
    broker.start()
    sent = send_all(newest, stand.names, "Unsized", 4 * MIB // 1024)
    assert following.name in os.listdir(pool.mountpoint)
    assert int(broker.runtime_info()["commitLogMaxOffset"]) > int(following.name) + pool.segment_size
    seen = rocketmq.consume(newest, stand.names.address, "Unsized", expect=sent.sent, idle_timeout_s=IDLE_S)
    assert (seen.distinct, seen.corrupted, seen.skipped) == (sent.sent, 0, 0)
    assert complaints(broker) == []


def test_failed_creation_leaves_no_name_and_the_broker_heals(stand, broker, newest, workdir):
    pool = stand.pool
    broker.start()
    acked = workdir / "acked"
    fillers = []
    with rocketmq.start_sender(newest, stand.names.address, "Healed", acked=acked) as sender:
        wait_until(lambda: line_count(acked) >= 500, "sending")
        fillers = [fill(disk.path, 99) for disk in stand.disks]
        wait_until(lambda: REFUSED in broker.log_text().lower(), "all disks full")
        stuck = line_count(acked)
        for directory in stand.directories():
            assert [p.name for p in directory.iterdir() if p.stat().st_size == 0] == []
        listed = sorted(os.listdir(pool.mountpoint))
        assert sorted(name for directory in stand.directories() for name in os.listdir(directory)) == listed
        assert not broker_crashed(broker)
        for filler in fillers:
            filler.unlink()
        wait_until(lambda: line_count(acked) >= stuck + 3000, "sending again")
        totals = sender.stop()
    assert totals.failed > 0
    seen = rocketmq.consume(newest, stand.names.address, "Healed", expect=totals.sent, idle_timeout_s=IDLE_S)
    assert (seen.corrupted, seen.skipped) == (0, 0)


def broker_crashed(broker):
    return not broker.is_running or (broker.home / "hs_err.log").exists() or "InternalError" in broker.log_text()


def test_native_broker_on_the_directories_refuses_mount_and_adopt(stand, broker, newest):
    """Told by a lease on the newest segment, which the broker keeps open."""
    pool = stand.pool
    pool.stop()
    mounted = broker.config["storePathCommitLog"]
    broker.config["storePathCommitLog"] = ",".join(map(str, stand.directories()))
    try:
        broker.start()
        refused = pool.cli("mount", pool.config)
        assert refused.status == 4
        assert "open in another process" in refused.err
        assert not os.path.ismount(pool.mountpoint)
        identities = [os.getxattr(directory, "user.commitlogfs.identity") for directory in stand.directories()]
        for directory in stand.directories():
            os.removexattr(directory, "user.commitlogfs.identity")
        try:
            adopted = pool.cli("adopt", pool.config)
            assert adopted.status == 4
            assert "stop the broker first" in adopted.err
            assert all(
                "user.commitlogfs.identity" not in os.listxattr(directory) for directory in stand.directories()
            )
        finally:
            for directory, identity in zip(stand.directories(), identities, strict=True):
                os.setxattr(directory, "user.commitlogfs.identity", identity)
        check_kept(stand, broker, newest)
    finally:
        broker.kill()
        broker.config["storePathCommitLog"] = mounted
