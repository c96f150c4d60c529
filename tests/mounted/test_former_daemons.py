"""Commands of this version beside a daemon of a former one, which reports less and knows fewer verbs."""

import os
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
    status["daemon"]["takeover_available"] = True
    prepared = {"number": 4, "path": os.fspath(pool.workdir / "new"), "filesystem": "ext4", "is_new": True}
    prepared |= {"total_bytes": 1 << 30, "available_bytes": 1 << 30, "warnings": []}
    with ExitStack() as stack:
        for suffix in (".sock", ".stat"):
            path = pool.runtime / f"{pool.name}{suffix}"
            path.unlink(missing_ok=True)
            answers = {"status": status, "segments": segments, "metrics": metrics, "disk-prepare": prepared}
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
    new = os.fspath(former.workdir / "new")
    verbs = [("explain", "create"), ("rebalance", "status"), ("scrub", "status"), ("disk", "cordon", "1")]
    verbs += [("disk", "add", new, "--dry-run"), ("disk", "replace", "1", new)]  # the room on the new disk
    for verb in verbs:
        ran = former.cli(*verb, former.name)
        assert ran.status == ExitCode.REFUSED, verb
        assert ran.err == "commitlogfs: test: its daemon is of a former version; `commitlogfs restart test`\n"
