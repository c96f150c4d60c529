"""Which mounts the exporter finds, from a mount table and configurations."""

import os
from pathlib import Path

import pytest

from commitlogfs.exporter.mounts import Discovery
from commitlogfs.mount.config import model
from commitlogfs.mount.linux import mountinfo

OURS = os.geteuid()
STRANGER = OURS + 1000


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where configurations are."""
    monkeypatch.setattr(model, "SYSTEM_DIRECTORY", tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    mount_table(monkeypatch)
    return tmp_path


def mount_table(monkeypatch: pytest.MonkeyPatch, *mounts: tuple[str, str, int]) -> None:
    """Name, mountpoint and user of each."""
    lines = [
        f"{number} 1 0:{number} / {mountpoint} rw - fuse.commitlogfs {name} rw,user_id={user},group_id=0"
        for number, (name, mountpoint, user) in enumerate(mounts, 40)
    ]
    entries = mountinfo.parse_mountinfo("\n".join(lines).encode(errors="surrogateescape"))
    monkeypatch.setattr(mountinfo, "read_mounts", lambda: entries)


def configure(directory: Path, name: str, mountpoint: str) -> None:
    text = f'mountpoint = "{mountpoint}"\nsegment_size = "1MiB"\n[[disks]]\npath = "/d"\n'
    (directory / f"{name}.toml").write_text(text)


def found() -> dict[str, tuple[str, bool]]:
    return {one.name: (one.mountpoint, one.is_mounted) for one in Discovery().find()}


def test_mounts_and_configurations(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(directory, "alpha", "/a")
    configure(directory, "beta", "/b")
    mount_table(monkeypatch, ("beta", "/b", 0), ("gamma", "/c", OURS))
    assert found() == {"alpha": ("/a", False), "beta": ("/b", True), "gamma": ("/c", True)}


def test_a_file_whose_name_no_mount_can_have(directory: Path) -> None:
    for name in ("my pool", "a\\b", "ü", "x" * 65):
        configure(directory, name, "/a")
    configure(directory, "alpha", "/a")
    assert found() == {"alpha": ("/a", False)}


def test_a_stranger_can_add_or_change_no_mount(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(directory, "alpha", "/a")
    mount_table(
        monkeypatch,
        ("beta", "/b", 0),
        ("alpha", "/evil", STRANGER),
        ("beta", "/evil", STRANGER),
        ("other", "/other", STRANGER),
    )
    assert found() == {"alpha": ("/a", False), "beta": ("/b", True)}


def test_a_configured_mount_of_another_user(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(directory, "alpha", "/a")
    mount_table(monkeypatch, ("alpha", "/a", STRANGER))
    assert found() == {"alpha": ("/a", True)}


def test_only_the_named_ones(directory: Path) -> None:
    configure(directory, "alpha", "/a")
    assert [one.name for one in Discovery(("alpha", "other")).find()] == ["alpha", "other"]
