"""Edits of a configuration file by a command: exactly the change, in the style of the file."""

import os
import stat
from pathlib import Path

import pytest

from commitlogfs.console.errors import RefusedError
from commitlogfs.mount.config import edit
from commitlogfs.mount.config.errors import ConfigError
from commitlogfs.mount.config.model import load_config

TABLES = """\
# the broker of rack 7
mountpoint = "/var/rocketmq/store/commitlog"   # as in broker.conf

[thresholds]
clean = 70

[[disks]]
path = "/data1/commitlog"  # slot 1
[[disks]]
path = "/data2/commitlog"
readonly = true
"""
INLINE = """\
mountpoint = "/var/rocketmq/store/commitlog"
disks = [
    { path = "/data1/commitlog" },  # slot 1
    { path = "/data2/commitlog" },
]
[retention]
mode = "off"
"""


@pytest.fixture
def file(workdir: Path) -> Path:
    return workdir / "broker.toml"


@pytest.mark.parametrize("text", [TABLES, INLINE], ids=["tables", "inline"])
def test_a_disk_is_added_and_everything_else_stays(file: Path, text: str):
    file.write_text(text)
    planned = edit.add_disk(str(file), "/data3/commitlog")
    assert file.read_text() == text
    edit.write(planned)
    before, after = text.splitlines(), file.read_text().splitlines()
    assert [line for line in after if line not in before] in (
        ['path = "/data3/commitlog"'],
        ['    {path = "/data3/commitlog"},'],
    )
    assert set(before) <= set(after)
    config = load_config(file)
    assert [disk.path for disk in config.disks] == ["/data1/commitlog", "/data2/commitlog", "/data3/commitlog"]
    assert config == planned.config
    edit.take_back(planned)
    assert file.read_text() == text


@pytest.mark.parametrize("text", [TABLES, INLINE], ids=["tables", "inline"])
def test_a_disk_is_removed_and_everything_else_stays(file: Path, text: str):
    file.write_text(text)
    planned = edit.remove_disk(str(file), "/data2/commitlog")
    edit.write(planned)
    gone = {'path = "/data2/commitlog"', "readonly = true", '    { path = "/data2/commitlog" },', "[[disks]]"}
    assert set(text.splitlines()) - set(file.read_text().splitlines()) <= gone
    assert [disk.path for disk in load_config(file).disks] == ["/data1/commitlog"]
    with pytest.raises(ConfigError, match="names no disk /data2/commitlog"):
        edit.remove_disk(str(file), "/data2/commitlog")
    with pytest.raises(ConfigError, match="disk"):
        edit.remove_disk(str(file), "/data1/commitlog")


def test_comments_of_other_entries_stay(file: Path):
    text = (
        'mountpoint = "/mnt"\n\n# the first\n[[disks]]\npath = "/data1"\n\n# the second\n[[disks]]\n'
        'path = "/data2"  # bay 2\n[disks.thresholds]\nclean = 60\n\n# about the thresholds\n[thresholds]\n'
        "clean = 70\n"
    )
    file.write_text(text)
    edit.write(edit.remove_disk(str(file), "/data2"))
    assert file.read_text() == (
        'mountpoint = "/mnt"\n\n# the first\n[[disks]]\npath = "/data1"\n\n# the second\n\n'
        "# about the thresholds\n[thresholds]\nclean = 70\n"
    )
    file.write_text(text)
    edit.write(edit.remove_disk(str(file), "/data1"))
    assert file.read_text() == text.replace('[[disks]]\npath = "/data1"\n', "")


def test_a_file_without_a_line_end_and_one_from_windows(file: Path):
    file.write_text('mountpoint = "/mnt"\n[[disks]]\npath = "/data1"')
    edit.write(edit.add_disk(str(file), "/data2"))
    assert [disk.path for disk in load_config(file).disks] == ["/data1", "/data2"]
    file.write_bytes(b'mountpoint = "/mnt"\r\n[[disks]]\r\npath = "/data1"\r\n')
    edit.write(edit.add_disk(str(file), "/data2"))
    assert file.read_bytes().count(b"\n") == file.read_bytes().count(b"\r\n") == 5
    edit.write(edit.remove_disk(str(file), "/data1"))
    assert [disk.path for disk in load_config(file).disks] == ["/data2"]


def test_one_line_of_disks(file: Path):
    file.write_text('mountpoint = "/mnt"\ndisks = [{ path = "/data1" }]\n')
    edit.write(edit.add_disk(str(file), "/data2"))
    assert [disk.path for disk in load_config(file).disks] == ["/data1", "/data2"]
    assert file.read_text().count("\n") == 2


def test_a_header_in_quotes_is_left_to_the_operator(file: Path):
    text = TABLES.replace("[[disks]]", '[["disks"]]')
    file.write_text(text)
    with pytest.raises(ConfigError, match="its header is written otherwise"):
        edit.remove_disk(str(file), "/data2/commitlog")
    assert file.read_text() == text
    edit.write(edit.add_disk(str(file), "/data3/commitlog"))
    assert len(load_config(file).disks) == 3


def test_a_disk_that_cannot_be_configured_is_refused(file: Path):
    file.write_text(TABLES)
    with pytest.raises(ConfigError, match="is disks"):
        edit.add_disk(str(file), "/data1/commitlog")
    with pytest.raises(ConfigError, match="overlap"):
        edit.add_disk(str(file), "/data1/commitlog/below")
    with pytest.raises(ConfigError, match="mountpoint"):
        edit.add_disk(str(file), "/var/rocketmq/store/commitlog/below")
    assert file.read_text() == TABLES


def test_a_file_that_was_changed_meanwhile_stays(file: Path):
    file.write_text(TABLES)
    planned = edit.add_disk(str(file), "/data3/commitlog")
    file.write_text(TABLES + "# by hand\n")
    with pytest.raises(ConfigError, match="another program has changed it meanwhile; repeat the command"):
        edit.write(planned)
    assert file.read_text() == TABLES + "# by hand\n"
    assert os.listdir(file.parent) == ["broker.toml"]


@pytest.mark.root
def test_mode_owner_and_links_stay(file: Path, workdir: Path):
    file.write_text(TABLES)
    file.chmod(0o640)
    os.chown(file, 1234, 4321)
    link = workdir / "linked.toml"
    link.symlink_to(file)
    edit.write(edit.add_disk(str(link), "/data3/commitlog"))
    state = file.stat()
    assert (stat.S_IMODE(state.st_mode), state.st_uid, state.st_gid) == (0o640, 1234, 4321)
    assert link.is_symlink()
    assert len(load_config(link).disks) == 3


def test_one_editor_at_a_time(file: Path):
    file.write_text(TABLES)
    with (
        edit.only_editor(str(file)),
        pytest.raises(RefusedError, match="another `commitlogfs disk` command is at work"),
        edit.only_editor(str(file)),
    ):
        pytest.fail("two editors")
    with edit.only_editor(str(file)):
        pass
