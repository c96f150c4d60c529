"""`scrub clear` of more than a request has time for."""

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from support.pooled import SIZE, Parts, make, open_parts, place, segment
from support.waiting import PATIENCE_S, until

from commitlogfs.fusefs.integrity import verdicts as verdicts_module
from commitlogfs.mount.daemon.scrub_requests import scrub_verbs
from commitlogfs.store import layout
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.scrub.recorded import remove_verdict
from commitlogfs.store.scrub.verdict import Kind, whole_verdict

DAMAGED = range(6)
"""In turn on three disks."""


@pytest.fixture
def parts(workdir: Path) -> Iterator[Parts]:
    with open_parts(workdir) as parts:
        for index in DAMAGED:
            trio.run(make, parts, index)
            parts.verdicts.record(segment(parts, index), whole_verdict(Kind.UNREADABLE, SIZE, 5))
            trio.run(parts.verdicts.record_on_disk, segment(parts, index))
        for number in parts.commitlog.disks:
            parts.verdicts.record_loaded(number)
        yield parts


async def clear(parts: Parts, **request: Any) -> dict[str, Any]:
    answer = await scrub_verbs(parts)["scrub-clear"](request)
    assert isinstance(answer, dict)
    return answer


def names(parts: Parts, *indexes: int) -> list[str]:
    return [segment(parts, index).name.decode() for index in indexes]


def left(parts: Parts) -> list[str]:
    return [found.name.decode() for found, _ in parts.verdicts.present()]


def test_what_is_left_is_said_and_cleared_afterwards(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, slow = threading.Event(), parts.commitlog.disks[DiskNumber(2)].dirfd

    def remove(dirfd: int, *file: Any, **options: Any) -> None:
        assert dirfd != slow or goes_on.wait(PATIENCE_S)
        remove_verdict(dirfd, *file, **options)

    monkeypatch.setattr(verdicts_module, "remove_verdict", remove)
    verdicts = replace(parts.commitlog.timing.verdicts, clear_s=0.0)  # its answer is due at once
    monkeypatch.setattr(parts.commitlog, "timing", replace(parts.commitlog.timing, verdicts=verdicts))

    async def run() -> None:
        first = await clear(parts)
        assert first["kept"] == []
        assert set(first["pending"]) >= set(names(parts, 1, 4))
        await until(lambda: left(parts) == names(parts, 1, 4))
        again = await clear(parts)
        assert (again["cleared"], again["pending"]) == ([], names(parts, 1, 4))
        goes_on.set()
        await until(lambda: not parts.verdicts.present())

    trio.run(run)
    assert not any(layout.XATTR_VERDICT in os.listxattr(place(parts, index)) for index in DAMAGED)


def test_those_of_a_disk_that_does_not_answer_are_kept(parts: Parts) -> None:
    parts.commitlog.disks[DiskNumber(2)].is_unresponsive = True
    answer = trio.run(clear, parts)
    assert (answer["kept"], answer["pending"]) == (names(parts, 1, 4), [])
    assert [report["segment"] for report in answer["cleared"]] == names(parts, 0, 2, 3, 5)
    assert left(parts) == names(parts, 1, 4)


def test_a_rehearsal_clears_nothing(parts: Parts) -> None:
    answer = trio.run(lambda: clear(parts, dry_run=True))
    assert (len(answer["cleared"]), answer["kept"], answer["pending"]) == (6, [], [])
    assert len(parts.verdicts.present()) == 6
