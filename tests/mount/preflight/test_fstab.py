from pathlib import Path

import pytest

from commitlogfs.mount.preflight.fstab import unmounted_above


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/data4", "/data4"),
        ("/data4/commitlog", "/data4"),
        ("/data4x/commitlog", None),
        ("/my disk/commitlog", "/my disk"),
        ("/proc/sys", None),  # is mounted
        ("/other", None),
    ],
)
def test_entries_that_are_not_mounted(path: str, expected: str | None):
    lines = ["# /other", "UUID=1 /data4 xfs defaults 0 2", r"/dev/x /my\040disk ext4 ro", "proc /proc proc", "x"]
    assert unmounted_above(path, "\n".join([*lines, "none none swap sw"])) == expected


def test_a_link_is_followed(workdir: Path):
    (workdir / "disk").mkdir()
    (workdir / "link").symlink_to("disk")
    assert unmounted_above(f"{workdir}/link/commitlog", f"x {workdir}/disk ext4\n") == f"{workdir}/disk"


def test_the_root_directory_is_mounted():
    assert unmounted_above("/anything", "UUID=1 / ext4 defaults\n") is None
