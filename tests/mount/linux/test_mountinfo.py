import os
import subprocess
from pathlib import Path

import pytest

from commitlogfs.mount.linux import mountinfo
from commitlogfs.mount.linux.mountinfo import parse_mountinfo

SAMPLE = rb"""22 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
40 22 0:50 / /srv/a\040b\011c\012d\134e rw,nosuid shared:7 master:3 - tmpfs we\043ird rw,size=4k
41 22 0:51 /sub /data ro - xfs /dev/sdb1 rw
42 41 0:52 / /data/log rw - fuse.commitlogfs pool rw,user_id=0
43 22 0:53 / /data rw - tmpfs  rw
44 22 0:54 / /dead rw - fuse.commitlogfs pool rw
45 44 0:55 / /dead rw - fuse.commitlogfs pool rw
46 45 0:56 / /dead rw - fuse.commitlogfs pool rw
"""
ENTRIES = parse_mountinfo(SAMPLE)


def test_octal_escapes_and_optional_fields():
    entry = ENTRIES[1]
    assert entry.mountpoint == "/srv/a b\tc\nd\\e"
    assert entry.source == "we#ird"
    assert entry.optional_fields == ("shared:7", "master:3")
    assert entry.device == os.makedev(0, 50)


def test_bytes_that_are_no_utf8_survive():
    entry = parse_mountinfo(b"1 1 0:1 / /\xff\xfe rw - tmpfs x rw\n")[0]
    assert os.fsencode(entry.mountpoint) == b"/\xff\xfe"


def test_empty_source():
    entry = parse_mountinfo(b"43 22 0:53 / /data rw - tmpfs  rw\n")[0]
    assert (entry.fstype, entry.source, entry.super_options) == ("tmpfs", "", ("rw",))


@pytest.mark.parametrize("line", [b"nonsense", b"1 1 0:1 / / rw tmpfs x rw", b"1 1 01 / / rw - tmpfs x rw"])
def test_a_line_that_is_none_is_refused(line: bytes):
    with pytest.raises(ValueError, match="not a line of mountinfo"):
        parse_mountinfo(line)


def test_the_topmost_of_a_stack_is_found_and_the_stack_counted():
    found = mountinfo.find_mount("/dead", ENTRIES)
    assert found is not None
    assert found.mount_id == 46
    assert mountinfo.stacked_count("/dead", ENTRIES) == 3
    assert mountinfo.stacked_count("/elsewhere", ENTRIES) == 0


def test_a_mount_hidden_by_a_later_one_is_not_found():
    entries = parse_mountinfo(
        b"22 1 254:0 / / rw - ext4 r rw\n41 22 0:51 / /data rw - xfs s rw\n"
        b"42 41 0:52 / /data/log rw - fuse.commitlogfs p rw\n43 41 0:53 / /data rw - tmpfs t rw\n"
    )
    assert mountinfo.find_mount("/data/log", entries) is None
    top = mountinfo.find_mount("/data", entries)
    assert top is not None
    assert top.mount_id == 43
    assert [entry.mount_id for entry in mountinfo.mounts_below("/data", entries)] == [42]


def test_containing_mount():
    assert mountinfo.containing_mount("/etc/passwd", ENTRIES) == ENTRIES[0]
    assert mountinfo.containing_mount("/dead/x", ENTRIES) == ENTRIES[-1]


def test_inside_a_chroot_the_root_is_not_listed():
    entries = parse_mountinfo(b"50 22 0:60 / /proc rw - proc proc rw\n")
    found = mountinfo.find_mount("/proc", entries)
    assert found is not None
    assert mountinfo.find_mount("/", entries) is None


def test_only_our_own_type_is_ours():
    assert [e.mount_id for e in ENTRIES if mountinfo.is_commitlogfs(e)] == [42, 44, 45, 46]
    assert mountinfo.is_fuse(ENTRIES[-1])
    assert not mountinfo.is_fuse(ENTRIES[0])


def test_a_path_beneath_a_fuse_mount_is_not_resolved_any_further():
    # /proc/self is a symlink: had it been resolved, it would have become a number.
    entries = parse_mountinfo(b"22 1 254:0 / / rw - ext4 r rw\n23 22 0:9 / /proc rw - fuse.commitlogfs p rw\n")
    assert mountinfo.resolve_path("/proc/self/x", entries) == "/proc/self/x"


def test_symlinks_and_relative_paths_are_resolved(workdir: Path, monkeypatch: pytest.MonkeyPatch):
    (workdir / "real/inner").mkdir(parents=True)
    (workdir / "link").symlink_to("real/inner")
    monkeypatch.chdir(workdir)
    assert mountinfo.resolve_path("link/absent") == f"{workdir}/real/inner/absent"
    assert mountinfo.resolve_path("link/../absent") == f"{workdir}/real/absent"
    (workdir / "circle").symlink_to("circle")
    with pytest.raises(OSError, match="symbolic links"):
        mountinfo.resolve_path("circle")


@pytest.mark.root
def test_a_real_stack_of_mounts(workdir: Path):
    place = workdir / "with space\n and newline"
    place.mkdir()
    (workdir / "link").symlink_to(place)
    for count in (1, 2):
        subprocess.run(["mount", "-t", "tmpfs", f"t{count}", str(place)], check=True)
        assert mountinfo.stacked_count(place) == count
    try:
        found = mountinfo.find_mount(workdir / "link")
        assert found is not None
        assert (found.source, found.device) == ("t2", place.stat().st_dev)
        assert [entry.source for entry in mountinfo.mounts_below(workdir)] == ["t1", "t2"]
        assert mountinfo.mounts_below(place) == ()
    finally:
        for _ in range(2):
            subprocess.run(["umount", str(place)], check=True)
    assert mountinfo.find_mount(place) is None
