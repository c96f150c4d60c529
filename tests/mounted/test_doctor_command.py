"""`commitlogfs doctor` on real pools, real disks and real leftovers."""

import os
import re
import socket
import subprocess

import pytest
from support.command_line import CommandLine
from support.loop_disks import MIB
from support.scrubs import await_recorded
from support.snapshots import snapshot
from support.tiny_fuse import tiny_fuse

from commitlogfs.mount.doctor import machine
from commitlogfs.mount.doctor.broker import find_broker
from commitlogfs.mount.linux import mountinfo

pytestmark = [pytest.mark.mounted, pytest.mark.full]


@pytest.fixture
def cli():
    return CommandLine()


def checks_of(ran):
    return {check["name"]: check for check in ran.json()["checks"]}


def without_levels(text: str) -> str:
    """Others may write to the filesystem between two runs."""
    return re.sub(r"[0-9.]+ % used", "% used", text)


def test_a_mounted_pool(mounted, cli, monkeypatch):
    monkeypatch.setenv("COMMITLOGFS_RUNTIME_DIR", str(mounted.runtime))
    mounted.disks[0].chmod(0o700)
    mounted.disks[1].chmod(0o700)
    await_recorded(mounted)
    before = snapshot(*mounted.disks)
    ran = cli("doctor", mounted.config, "--json")
    assert ran.status == 1  # three directories on one filesystem
    checks = checks_of(ran)
    assert checks["mountpoint"]["message"] == f"{mounted.mountpoint}: mounted, and answers"
    assert checks["disks-share-filesystem"]["level"] == "warning"
    open_directory = checks["directory-open-to-others"]
    assert (open_directory["level"], open_directory["remedy"]) == ("note", f"chmod 0700 {mounted.disks[2]}")
    assert [c["name"] for c in ran.json()["checks"]].count("directory-open-to-others") == 1
    assert {"kernel", "fuse-device", "request-timeout", "sockets", "disk", "store-root", "allow-other"} <= set(
        checks
    )
    assert {"open-files", "mappings", "locale"} <= set(checks)
    assert all(bool(check["remedy"]) == (check["level"] != "ok") for check in checks.values())
    assert snapshot(*mounted.disks) == before

    words = cli("doctor", mounted.config)
    assert words.status == 1
    for check in ran.json()["checks"]:
        assert without_levels(f"{check['level']}: {check['message']}") in without_levels(words.out)
    quiet = cli("-q", "doctor", mounted.config).out.splitlines()
    assert quiet
    assert all(line.startswith(("warning: ", "problem: ")) for line in quiet)


@pytest.mark.root
def test_a_mount_of_another_user_cannot_steer_a_terminal(workdir, cli, monkeypatch):
    """Every user can mount, below a path of any bytes, what looks like a mount of ours."""
    monkeypatch.setenv("COMMITLOGFS_RUNTIME_DIR", str(workdir / "run"))
    mountpoint = workdir / "evil\x1b]0;title\x07\nok: All is well."
    mountpoint.mkdir()
    with tiny_fuse(mountpoint, hidden=False):
        ran = cli("doctor")
        named = cli("status", mountpoint)
    lines = [line for line in ran.out.splitlines() if "evil" in line]
    assert len(lines) == 1
    assert lines[0].startswith(f"problem: {workdir}/evil\\x1b]0;title\\x07\\nok: All is well.: the mount")
    assert "\x1b" not in ran.out + named.err
    assert "evil\\x1b]0" in named.err


@pytest.mark.root
def test_disks_of_their_own_and_a_guarded_mountpoint_are_well(disk_farm, make_pool, cli, monkeypatch):
    monkeypatch.setattr("commitlogfs.mount.doctor.pool.segments_possible", lambda usage, size: 100)
    directories = []
    for _ in range(2):
        directory = disk_farm.add("ext4").path / "commitlog"
        directory.mkdir(mode=0o700)
        directories.append(directory)
    pool = make_pool(disks=directories)
    try:
        monkeypatch.setenv("COMMITLOGFS_RUNTIME_DIR", str(pool.runtime))
        pool.start()
        pool.stop()
        ran = cli("doctor", pool.config)
        assert ran.status == 0, ran.out
        assert f"ok: {pool.mountpoint}: not mounted, guarded (" in ran.out
        assert ran.out.splitlines()[-1] == "All is well."
    finally:
        pool.abandon()


def test_a_wrong_segment_size_is_a_problem_that_names_the_key(make_pool, cli):
    pool = make_pool(2)
    pool.segment_size = 2 * MIB
    pool.write_config()
    for verb, level in (("doctor", "problem"), ("check", "refuses")):
        ran = cli(verb, pool.config)
        assert ran.status == 1
        text = f"{pool.disks[0]}: the pool's segments have {MIB} bytes, "
        text += f"but segment_size in the configuration is {2 * MIB}"
        assert f"{level}: {text}; correct segment_size" in ran.out


@pytest.mark.root
def test_too_few_inodes(disk_farm, make_pool, cli):
    disk = disk_farm.add("ext4")
    disk.unmount()
    subprocess.run(["mkfs.ext4", "-q", "-F", "-N", "16", disk.image], check=True, capture_output=True)
    disk.mount()
    pool = make_pool(disks=[disk.path], segment_size=65536)
    check = checks_of(cli("doctor", pool.config, "--json"))["inodes"]
    assert (check["level"], "free, too few for the segments that have room" in check["message"]) == (
        "warning",
        True,
    )
    assert os.statvfs(disk.path).f_bavail * os.statvfs(disk.path).f_frsize > MIB


def test_disks_that_are_no_pool_or_not_there(make_pool, cli):
    pool = make_pool(2, born=False)
    pool.write_config()
    ran = cli("doctor", pool.config, "--json")
    assert checks_of(ran)["identity"]["level"] == "warning"
    pool.init()
    os.removexattr(pool.disks[1], "user.commitlogfs.identity")
    assert checks_of(cli("doctor", pool.config, "--json"))["disk-without-identity"]["level"] == "problem"
    pool.disks[1].rmdir()
    check = [c for c in cli("doctor", pool.config, "--json").json()["checks"] if c["level"] == "problem"]
    assert [(c["name"], c["message"]) for c in check] == [("disk", f"{pool.disks[1]}: no such directory")]


def test_a_stale_socket(workdir, monkeypatch):
    monkeypatch.setenv("COMMITLOGFS_RUNTIME_DIR", str(workdir))
    workdir.chmod(0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(workdir / "gone.sock"))
        listener.listen()
        (alive,) = machine.check_sockets()
    (stale,) = machine.check_sockets()
    assert (alive.name, stale.name) == ("sockets", "stale-socket")
    assert stale.message == f"{workdir}/gone.sock: no daemon listens there"


def test_a_dead_mount_is_found_without_its_configuration(make_pool):
    pool = make_pool(1)
    pool.start()
    before = machine.check_mounts([])
    pool.kill()
    entry = mountinfo.find_mount(pool.mountpoint)
    assert entry is not None
    dead = [check for check in machine.check_mounts([]) if check.message.startswith(f"{pool.mountpoint}: ")]
    assert [check.name for check in dead] == ["dead-mount"]
    assert not [check for check in before if check.message.startswith(f"{pool.mountpoint}: ")]
    assert not [
        check for check in machine.check_mounts([entry.mountpoint]) if str(pool.mountpoint) in check.message
    ]


def test_the_limits_of_a_running_broker_count(mounted, workdir):
    """Any program called java that holds a segment passes for a broker."""
    mounted.make_segments([0])
    assert not find_broker(str(mounted.mountpoint)).running
    java = workdir / "java"
    java.symlink_to("/bin/sleep")
    with open(mounted.path(0), "rb") as segment:
        broker = subprocess.Popen(
            ["prlimit", "--nofile=1000:3000", str(java), "60"], stdin=segment, env={"LANG": "ar_EG.UTF-8"}
        )
        try:
            view = find_broker(str(mounted.mountpoint))
            while not view.running and broker.poll() is None:
                view = find_broker(str(mounted.mountpoint))
        finally:
            broker.kill()
            broker.wait()
    assert (view.running, view.open_files, view.environment["LANG"]) == (True, 3000, "ar_EG.UTF-8")
    assert view.name == f"the broker (pid {broker.pid})"
