"""The checks of `doctor` on given facts, without a machine that has these problems."""

import errno
import os
from pathlib import Path

import pytest

from commitlogfs.mount.doctor import machine, pool
from commitlogfs.mount.doctor.broker import BrokerView, check_locale, check_mappings, check_open_files
from commitlogfs.mount.doctor.daemon import check_daemon
from commitlogfs.mount.doctor.diagnosis import Level
from commitlogfs.mount.doctor.machine import (
    check_allow_other,
    check_fuse_device,
    check_fusermount,
    check_kernel,
    check_request_timeouts,
)
from commitlogfs.mount.doctor.pool import check_access, check_mountpoint, inspect_store_root, segments_possible
from commitlogfs.mount.location.guard import lower_guard, raise_guard
from commitlogfs.store.disks.identity import RootAttributes
from commitlogfs.store.files.usage import DiskUsage
from commitlogfs.store.thresholds import Thresholds

TIB = 1 << 40


@pytest.mark.parametrize(
    ("release", "level"),
    [
        ("5.5.0-18-amd64", Level.PROBLEM),
        ("4.19.0", Level.PROBLEM),
        ("5.6.0", Level.OK),
        ("5.10.0-28", Level.OK),
        ("6.18.44-fc", Level.OK),
        ("strange", Level.OK),
    ],
)
def test_kernel(release, level):
    assert check_kernel(release).level is level


def test_fuse_device(tmp_path, monkeypatch):
    assert check_fuse_device(tmp_path / "absent").level is Level.PROBLEM
    assert "modprobe fuse" in check_fuse_device(tmp_path / "absent").remedy
    (tmp_path / "there").touch()
    assert "not the FUSE device" in check_fuse_device(tmp_path / "there").message
    assert check_fuse_device(Path("/dev/null")).level is Level.PROBLEM  # as a container masks it

    def denied(*args: object) -> int:
        raise PermissionError(errno.EACCES, "denied")

    monkeypatch.setattr(machine.os, "open", denied)
    assert "0666" in check_fuse_device(tmp_path / "there").remedy


def test_fusermount():
    assert check_fusermount(None, False).remedy == "install the package fuse3"
    assert check_fusermount("/usr/bin/fusermount3", False).level is Level.PROBLEM
    assert check_fusermount("/usr/bin/fusermount3", True).level is Level.OK


@pytest.mark.parametrize(
    ("wanted", "root", "conf", "level"),
    [
        (False, False, "", Level.OK),
        (True, True, "", Level.OK),
        (True, False, "# user_allow_other\n#user_allow_other\nmount_max = 5\n", Level.PROBLEM),
        (True, False, "mount_max = 5\n user_allow_other \n", Level.OK),
    ],
)
def test_allow_other(wanted, root, conf, level):
    assert check_allow_other(enabled=wanted, root=root, fuse_conf=conf).level is level


def test_request_timeouts():
    quiet = {"default_request_timeout": 0, "max_request_timeout": None}
    assert check_request_timeouts(quiet).level is Level.OK
    check = check_request_timeouts({"default_request_timeout": 0, "max_request_timeout": 30})
    assert check.level is Level.WARNING
    assert check.message == "fs.fuse.max_request_timeout = 30: one request that hangs aborts the whole mount"
    assert "fs.fuse.max_request_timeout=0" in check.remedy


def test_sixty_terabytes_need_sixty_thousand_descriptors_and_mappings():
    segments = segments_possible(DiskUsage(60 * 10**12, 0, 0), 1 << 30)
    assert segments == 55879
    small = BrokerView("the broker (pid 5)", True, 20_000)
    check = check_open_files(segments, small)
    assert (check.level, "LimitNOFILE=70000" in check.remedy) == (Level.WARNING, True)
    assert check_open_files(segments, BrokerView("a process", False, 20_000)).level is Level.NOTE
    assert check_open_files(segments, BrokerView("the broker", True, 65_536)).level is Level.OK
    check = check_mappings(segments + 10_000, 65_530)
    assert (check.level, "vm.max_map_count=80000" in check.remedy) == (Level.WARNING, True)
    assert check_mappings(segments, 65_530).level is Level.OK


@pytest.mark.parametrize(
    ("environment", "level"),
    [
        ({}, Level.OK),
        ({"LANG": "de_DE.UTF-8"}, Level.OK),
        ({"LANG": "ar_EG.UTF-8"}, Level.WARNING),
        ({"LANG": "ar_EG.UTF-8", "LC_ALL": "C.UTF-8"}, Level.OK),
        ({"LANG": "C", "LC_CTYPE": "fa_IR"}, Level.WARNING),
        ({"LC_ALL": "", "LANG": "mr_IN"}, Level.WARNING),
        ({"LC_ALL": "C", "LC_CTYPE": "fa_IR"}, Level.OK),
    ],
)
def test_locale(environment, level):
    assert check_locale(BrokerView("a process", False, 1, environment)).level is level


@pytest.mark.parametrize(
    ("used", "level", "said"),
    [(75.0, Level.OK, ""), (75.1, Level.NOTE, "expired"), (85.0, Level.NOTE, ""), (85.1, Level.WARNING, "because")],
)
def test_store_root(used, level, said):
    check = inspect_store_root("/store", used, Thresholds())
    assert (check.level, said in check.message) == (level, True)


def test_guard_states(workdir):
    directory = workdir / "mountpoint"
    assert check_mountpoint(str(directory)).level is Level.NOTE
    directory.mkdir()
    check = check_mountpoint(str(directory))
    assert (check.name, check.level) == ("guard", Level.WARNING)
    assert "deletes its consumequeue" in check.message
    try:
        raise_guard(directory)
        assert check_mountpoint(str(directory)).level is Level.OK
    finally:
        lower_guard(directory)
    (directory / "00000000000000000000").touch()
    check = check_mountpoint(str(directory))
    assert (check.name, check.level, "commitlogfs adopt" in check.message) == ("mountpoint", Level.PROBLEM, True)


def test_a_store_root_that_is_not_there_yet(tmp_path):
    check = pool.check_store_root(os.fspath(tmp_path / "absent" / "commitlog"), Thresholds())
    assert check.level is Level.NOTE


@pytest.mark.parametrize(
    ("mode", "level", "said"),
    [
        (0o750, Level.OK, "root and group root can read the messages"),
        (0o700, Level.OK, "root alone can read the messages"),
        (0o755, Level.NOTE, "every user of this machine can reach the segments"),
        (0o751, Level.NOTE, "every user of this machine can reach the segments"),
    ],
)
def test_who_can_read_the_messages(mode, level, said):
    check = check_access("/log", RootAttributes(mode, 0, 0))
    assert (check.level, said in check.message) == (level, True)


def test_damage_that_is_not_known_yet_is_noted() -> None:
    document = {
        "daemon": {"pid": 7},
        "degraded": False,
        "disks": [],
        "findings": [],
        "placement": {"next_disk": "/data1"},
        "retention": {"alerts": []},
        "scrub": {"unknown": ["/data2"]},
        "segments": {"gaps": []},
    }
    (noted,) = check_daemon(document)
    assert (noted.name, noted.level) == ("damage-unknown", Level.NOTE)
    assert noted.message.startswith("/data2: has not answered yet")
    (fine,) = check_daemon({**document, "scrub": {"unknown": []}})
    assert fine.level is Level.OK
