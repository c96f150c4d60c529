"""A broker on the mount becomes the slave of one that lacks its newest messages, and cuts its log back."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.brokers import Stand, check_all, make_broker, send_all, wait_until
from support.checksums import NEWEST, await_checksums
from support.pools import MIB
from support.scrubs import scrub

from commitlogfs.bench.rocketmq import Broker, Distribution, NameServer
from commitlogfs.bench.rocketmq.config import ConfigValue
from commitlogfs.bench.rocketmq.ports import ReservedPort

pytestmark = [pytest.mark.broker, pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

Properties = dict[str, ConfigValue]

NAME = "switching"
REPLICATED, LOST, OTHERS = 3000, 4000, 1000
"""Messages that both brokers have, that only the first one has, and that only the second one has."""


@pytest.fixture
def controller(newest: Distribution, workdir: Path) -> Iterator[tuple[NameServer, Properties]]:
    """A name server that chooses the master, also one that lacks messages; and what its brokers need."""
    port = ReservedPort()
    config: Properties = {
        "enableControllerInNamesrv": True,
        "controllerDLegerGroup": "group1",
        "controllerDLegerPeers": f"n0-127.0.0.1:{port.number}",
        "controllerDLegerSelfId": "n0",
        "controllerStorePath": str(workdir / "controller"),
        "enableElectUncleanMaster": True,
    }
    of_broker: Properties = {
        "brokerName": NAME,
        "brokerId": -1,
        "brokerRole": "SLAVE",
        "enableControllerMode": True,
        "controllerAddr": f"127.0.0.1:{port.number}",
    }
    with NameServer(newest, workdir, config, name="controller") as names:
        yield names, of_broker


def test_segments_that_are_cut_back_and_written_anew_are_sound(
    new_stand: Callable[..., Stand],
    controller: tuple[NameServer, Properties],
    newest: Distribution,
    workdir: Path,
) -> None:
    """Among them one with a checksum, which is cut in its middle."""
    names, of_broker = controller
    stand = new_stand(("ext4", "xfs", "ext4"), segment_size=2 * MIB, disk_bytes=512 * MIB)
    pool = stand.pool
    pool.init()
    pool.start()
    first = make_broker(pool, names, newest, of_broker)
    settings = {**of_broker, "mappedFileSizeCommitLog": pool.segment_size}
    second = Broker(newest, names, workdir, settings, name="second")
    copies = second.commitlog_dirs[0]

    def end(broker: Broker) -> int:
        return int(broker.runtime_info()["commitLogMaxOffset"])

    try:
        first.start()
        sent = send_all(newest, names, "Both", REPLICATED, size_bytes=4096)
        second.start()
        wait_until(lambda: end(second) == end(first), "the slave")
        second.kill()
        cut_at = end(first)
        send_all(newest, names, "Lost", LOST, size_bytes=4096)
        count = len(list(pool.mountpoint.glob("0*")))
        assert count - NEWEST > cut_at // pool.segment_size + 1
        await_checksums(pool, count - NEWEST)
        first.kill()
        second.start()
        more = send_all(newest, names, "Others", OTHERS, size_bytes=4096)
        first.start()
        wait_until(lambda: end(first) == end(second), "the first broker to follow the second one")
        segments = sorted(os.listdir(pool.mountpoint))
        assert segments == sorted(os.listdir(copies))
        for name in segments:
            assert (pool.mountpoint / name).read_bytes() == (copies / name).read_bytes(), name
        assert scrub(pool) == {}
        check_all(newest, names, "Both", sent)
        check_all(newest, names, "Others", more)
        assert scrub(pool) == {}
    finally:
        first.kill()
        second.kill()
