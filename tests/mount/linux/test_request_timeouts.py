"""The kernel's time limits for FUSE requests, which end a whole mount, are read and reported."""

import logging
from pathlib import Path

import pytest

from commitlogfs.mount.daemon import lifecycle
from commitlogfs.mount.doctor.diagnosis import Level
from commitlogfs.mount.doctor.machine import check_request_timeouts
from commitlogfs.mount.linux.request_timeouts import DIRECTORY, describe_limits, read_request_timeouts


def test_they_are_read_from_the_kernel() -> None:
    assert Path("/proc/sys/fs/fuse") == DIRECTORY
    expected = {
        name: int((DIRECTORY / name).read_text()) if (DIRECTORY / name).exists() else None
        for name in ("default_request_timeout", "max_request_timeout")
    }
    assert read_request_timeouts() == expected


def test_a_kernel_that_has_one_of_them(tmp_path: Path) -> None:
    (tmp_path / "max_request_timeout").write_text("15\n")
    timeouts = read_request_timeouts(tmp_path)
    assert timeouts == {"default_request_timeout": None, "max_request_timeout": 15}
    assert describe_limits(timeouts) == "fs.fuse.max_request_timeout = 15"
    assert check_request_timeouts(timeouts).level is Level.WARNING


@pytest.mark.parametrize(("seconds", "lines"), [(0, 0), (60, 1)])
def test_a_mount_warns_of_them(tmp_path: Path, caplog: pytest.LogCaptureFixture, seconds: int, lines: int) -> None:
    (tmp_path / "default_request_timeout").write_text(f"{seconds}\n")
    with caplog.at_level(logging.WARNING):
        lifecycle.warn_of_time_limits(read_request_timeouts(tmp_path))
    assert len(caplog.records) == lines
    assert all(record.levelno == logging.WARNING for record in caplog.records)
