"""Loop disks of the benchmarks: what an interrupted run leaves open does not hide the interruption."""

import os
from pathlib import Path

import pytest

from commitlogfs.bench import disks, sweep
from commitlogfs.bench.disks import MIB, LoopDisk
from commitlogfs.mount.linux import mountinfo


@pytest.mark.root
@pytest.mark.parametrize("error", [None, KeyboardInterrupt()], ids=["completed", "interrupted"])
def test_a_busy_disk_fails_a_run_only_if_nothing_else_has(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException | None
):
    monkeypatch.setattr(disks, "_UNMOUNT_TIMEOUT_S", 0.2)
    left_open: list[int] = []

    def work() -> None:
        with LoopDisk(workdir / "disk", "ext4", 16 * MIB) as disk:
            left_open.append(os.open(disk.path, os.O_RDONLY))
            if error is not None:
                raise error

    with pytest.raises(OSError if error is None else KeyboardInterrupt) as raised:
        work()
    if error is None:
        assert "disk: cannot be unmounted: " in str(raised.value)
    assert [entry.mountpoint for entry in mountinfo.mounts_below(workdir)] == [str(workdir / "disk")]
    os.close(left_open[0])
    sweep.detach_mounts(workdir)
    assert not mountinfo.mounts_below(workdir)
