"""Commands of this version beside a daemon of a former one, which reports less and knows fewer verbs."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from support.pools import PoolMount
from support.scripted_daemon import scripted_daemon

from commitlogfs.console.exit_status import ExitCode

pytestmark = [pytest.mark.mounted, pytest.mark.root]

LATER = ("alerts", "checksums", "members", "offline_disks", "oldest_message", "rebalance", "scrub")
"""Parts of the status document that the first version did not have."""
LATER_OF_A_DISK = ("cordon", "drain", "io", "slowness")


@pytest.fixture
def former(make_pool: Callable[..., PoolMount]) -> Iterator[PoolMount]:
    pool = make_pool(3)
    pool.start()
    pool.make_segments(range(6))
    status, segments, metrics = (pool.ask(verb) for verb in ("status", "segments", "metrics"))
    pool.stop()
    for part in LATER:
        del status[part]
    for disk in status["disks"]:
        for part in LATER_OF_A_DISK:
            del disk[part]
    with ExitStack() as stack:
        for suffix in (".sock", ".stat"):
            path = pool.runtime / f"{pool.name}{suffix}"
            path.unlink(missing_ok=True)
            answers = {"status": status, "segments": segments, "metrics": metrics}
            stack.enter_context(scripted_daemon(path, **answers))
        yield pool


def test_what_it_reports_is_shown(former: PoolMount) -> None:
    for verb in (("status",), ("map",), ("top", "--once"), ("disk", "list"), ("exporter", "--once")):
        ran = former.cli(*verb, former.name)
        assert (ran.status, ran.err) == (0, ""), (verb, ran.err)
        assert "disk0" in ran.out


def test_a_dry_run_of_its_replacement_says_what_is_known(former: PoolMount) -> None:
    ran = former.cli("restart", former.name, "--dry-run")
    assert (ran.status, ran.err) == (0, "")
    assert "another one would take over" in ran.out


def test_what_it_does_not_know_is_said_in_one_line(former: PoolMount) -> None:
    for verb in (("explain", "create"), ("rebalance", "status"), ("scrub", "status"), ("disk", "cordon", "1")):
        ran = former.cli(*verb, former.name)
        assert ran.status == ExitCode.REFUSED, verb
        assert ran.err == "commitlogfs: test: its daemon is of a former version; `commitlogfs restart test`\n"
