"""Metrics after restarts."""

import os
import re
import threading
from collections.abc import Callable

import pytest
from support.pools import PoolMount
from support.versions import VersionedMount
from support.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.mounted, pytest.mark.root]

NEVER_ANSWERS = """
import trio
from pathlib import Path
from commitlogfs.fusefs.operations import CommitLogOperations

async def getxattr(self, inode, name, ctx):
    Path(__file__).with_name("asked").touch()
    await trio.sleep_forever()

CommitLogOperations.getxattr = getxattr
"""


def told(pool: PoolMount) -> dict[str, float]:
    text = (pool.mountpoint / ".commitlogfs/metrics").read_text()
    wanted = "restarts_total|resent_requests_total|passthrough_handles|state_lost"
    return {name: float(value) for name, value in re.findall(rf"^commitlogfs_({wanted})\S* (\S+)$", text, re.M)}


def test_restarts_and_requests_sent_again_are_counted(keep_versions: Callable[..., VersionedMount]) -> None:
    mount = keep_versions(2)
    pool = mount.pool
    pool.make_segments(range(3))
    zero = {"restarts_total": 0, "resent_requests_total": 0, "passthrough_handles": 3, "state_lost": 0}
    assert told(pool) == zero
    mount.before(NEVER_ANSWERS)
    mount.replace()
    assert told(pool) == zero | {"restarts_total": 1}
    values: list[bytes] = []
    asking = threading.Thread(target=lambda: values.append(os.getxattr(pool.path(1), "user.commitlogfs.disk")))
    asking.start()
    eventually((pool.workdir / "versions/asked").exists)
    mount.kill()
    mount.before("")
    mount.go_on()
    asking.join(PATIENCE_S)
    assert values == [os.fsencode(pool.disks[1])]
    assert told(pool) == zero | {"restarts_total": 2, "resent_requests_total": 1}
    for index in range(3):
        pool.path(index).unlink()
    eventually(lambda: told(pool)["passthrough_handles"] == 0)
