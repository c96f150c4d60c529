"""The status document of a pool on plain directories, without a mount."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import trio
from support.pooled import open_parts
from trio.testing import MockClock

from commitlogfs.fusefs.disks import usage_monitor
from commitlogfs.mount.config.model import parse_config
from commitlogfs.mount.status import document
from commitlogfs.mount.status.document import StatusReport
from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.files.usage import DiskUsage

VANISHING = DiskNumber(2)


def test_what_a_document_says_of_a_disk_is_of_one_moment(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk vanishes while the document is composed, by its last measurement of a filesystem."""
    measure = document.measure_store_root
    found: list[dict[str, Any]] = []
    with open_parts(workdir) as parts:
        disks = "".join(f'[[disks]]\npath = "{path}"\n' for path in parts.directories)
        text = f'mountpoint = "{workdir}/store/commitlog"\nsegment_size = 4096\n{disks}'
        report = StatusReport(parse_config(text, "demo", "demo.toml"), parts, str, list)
        (workdir / "store").mkdir()

        def measure_as_it_vanishes(place: Any) -> Any:
            parts.commitlog.disks[VANISHING].is_vanished = True
            return measure(place)

        async def compose() -> None:
            monkeypatch.setattr(document, "measure_store_root", measure_as_it_vanishes)
            found.append(await report.compose())

        trio.run(compose, clock=MockClock())
    disk = next(one for one in found[0]["disks"] if one["number"] == VANISHING)
    assert (disk["state"], disk["refusal"], disk["eligible"]) == ("vanished", "not-writable", False)


def test_a_disk_that_was_not_measured_keeps_its_state(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a busy machine, where it answers too late. `offline` is what an operator has released."""
    found: list[dict[str, Any]] = []

    def refuse(_dirfd: int) -> DiskUsage:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with open_parts(workdir) as parts:
        disks = "".join(f'[[disks]]\npath = "{path}"\n' for path in parts.directories)
        text = f'mountpoint = "{workdir}/store/commitlog"\nsegment_size = 4096\n{disks}'
        report = StatusReport(parse_config(text, "demo", "demo.toml"), parts, str, list)
        (workdir / "store").mkdir()

        async def compose() -> None:
            monkeypatch.setattr(usage_monitor, "measure_usage", refuse)
            found.append(await report.compose())

        trio.run(compose, clock=MockClock())
    told = {(disk["state"], disk["refusal"], disk["total_bytes"]) for disk in found[0]["disks"]}
    assert told == {("rw", "unknown-usage", None)}
