"""`disk drain --wait` on a terminal of 80 columns: what is shown, and what an interrupt leaves."""

from collections.abc import Callable

import pytest
from support.kept import KeptMount
from support.pools import PoolMount
from support.terminals import FIGURES, terminal
from support.waiting import eventually

pytestmark = [pytest.mark.mounted, pytest.mark.root]

COUNT = 20
SLOW = "64KiB"


@pytest.fixture
def pool(keep: Callable[..., KeptMount]) -> PoolMount:
    pool = keep(3).pool
    pool.make_segments(range(COUNT))
    return pool


def test_an_interrupted_drain_continues(pool: PoolMount) -> None:
    with terminal(pool, "disk", "drain", 2, pool.name, "--rate", SLOW, "--wait") as shown:
        eventually(lambda: FIGURES.search(shown.text()), shown=shown.text)
        assert shown.interrupt() == 130
        eventually(lambda: "test: the drain continues; `commitlogfs disk cancel 2 test` ends it" in shown.text())
    assert "\u2026" not in shown.text()
    assert pool.ask("status")["disks"][1]["drain"] is not None
    ran = pool.cli("disk", "cancel", 2, "test")
    assert ran.status == 0, ran.err


def test_a_drain_that_waits_for_the_broker_is_described(pool: PoolMount) -> None:
    with terminal(pool, "disk", "drain", 2, pool.name, "--rate", "100MiB", "--wait") as shown:
        eventually(lambda: "moved when the broker" in " ".join(shown.text().split()), shown=shown.text)
        pool.make_segments(range(COUNT, COUNT + 4))
        assert shown.wait() == 0
        eventually(lambda: f"test: disk 2 ({pool.disks[1]}) holds no segment any more" in shown.text())


def test_a_cancelled_drain_ends_the_wait(pool: PoolMount) -> None:
    with terminal(pool, "disk", "drain", 2, pool.name, "--rate", SLOW, "--wait") as shown:
        eventually(lambda: pool.ask("status")["disks"][1]["drain"] is not None)
        assert pool.cli("disk", "cancel", 2, pool.name).status == 0
        assert shown.wait() == 1
        eventually(lambda: "does not drain any longer; it was cancelled" in " ".join(shown.text().split()))
