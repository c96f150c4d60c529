"""An ordinary user mounts a pool of their own directories through fusermount3."""

import json
import os
import sys
from pathlib import Path

import pytest
from support.pools import MIB, segment_name
from support.unprivileged import UID, Desktop
from support.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.mounted, pytest.mark.root, pytest.mark.full]

CLI = [sys.executable, "-m", "commitlogfs.mount.cli"]

SMALL_BROKER = """
import mmap, os, sys
directory, size = sys.argv[1], int(sys.argv[2])
for index in range(4):
    fd = os.open(f"{directory}/{index * size:020d}", os.O_RDWR | os.O_CREAT, 0o644)
    os.ftruncate(fd, size)
    with mmap.mmap(fd, size) as mapped:
        mapped[:8] = b"%08d" % index
        mapped.flush()
    os.close(fd)
os.unlink(f"{directory}/{0:020d}")
print(",".join(sorted(os.listdir(directory))))
"""


@pytest.fixture(autouse=True)
def user_has_fuse(desktop: Desktop) -> None:
    seen = desktop.run(sys.executable, "-c", "import commitlogfs.mount.cli, os; os.open('/dev/fuse', os.O_RDWR)")
    assert seen.returncode == 0, seen.stderr


def test_a_pool(desktop: Desktop) -> None:
    disks = [desktop.home / f"disk{number}" for number in range(3)]
    mountpoint, config, log = desktop.home / "commitlog", desktop.home / "mine.toml", desktop.home / "log"
    lines = [f'mountpoint = "{mountpoint}"', f"segment_size = {MIB}"]
    config.write_text("\n".join([*lines, *(f'[[disks]]\npath = "{disk}"' for disk in disks)]) + "\n")

    made = desktop.run(*CLI, "init", config)
    assert made.returncode == 0, made.stderr
    for expected in ("", "again"):
        daemon = desktop.start(*CLI, "mount", config, log=log)
        try:
            eventually(lambda: "event=ready" in log.read_text())
            if not expected:
                done = desktop.run(sys.executable, "-c", SMALL_BROKER, mountpoint, MIB)
                assert done.returncode == 0, done.stderr
                assert done.stdout.strip() == ",".join(segment_name(index, MIB) for index in (1, 2, 3))
            mounts = desktop.run("cat", "/proc/self/mountinfo").stdout
            (entry,) = [line for line in mounts.splitlines() if str(mountpoint) in line]
            assert "allow_other" not in entry
            assert f"user_id={UID}" in entry
            assert {"nosuid", "nodev", "noexec"} <= set(entry.split()[5].split(","))
            # The kernel keeps everybody else out, root included.
            denied = desktop.run("ls", mountpoint, user=False)
            assert denied.returncode != 0
            assert "Permission denied" in denied.stderr
            status = desktop.run(*CLI, "status", "mine", "--json")
            assert status.returncode == 0, status.stderr
            pid = json.loads(status.stdout)["daemon"]["pid"]
            assert desktop.run("readlink", f"/proc/{pid}/fd/2").stdout.strip() == str(log)  # `debug` reads it
            read = desktop.run("head", "-c", "8", mountpoint / segment_name(2, MIB))
            assert read.stdout == "00000002"
            unmounted = desktop.run(*CLI, "umount", mountpoint)
            assert unmounted.returncode == 0, unmounted.stderr
            assert daemon.wait(PATIENCE_S) == 0
        finally:
            desktop.run("fusermount3", "-u", "-q", mountpoint)
            daemon.terminate()
            daemon.wait()
    for index in (1, 2, 3):
        st = (disks[index] if index < 3 else disks[0]).joinpath(segment_name(index, MIB)).stat()
        assert (st.st_uid, st.st_gid, st.st_size, st.st_blocks * 512 >= MIB) == (UID, UID, MIB, True)
    assert os.listdir(mountpoint) == ["COMMITLOG-NOT-MOUNTED"]


def test_allow_other_forbidden(desktop: Desktop) -> None:
    conf = Path("/etc/fuse.conf")
    if conf.exists() and any(line.strip() == "user_allow_other" for line in conf.read_text().splitlines()):
        pytest.skip("this machine allows it")
    config = desktop.home / "mine.toml"
    disk = desktop.home / "disk"
    config.write_text(
        f'mountpoint = "{desktop.home / "commitlog"}"\nsegment_size = {MIB}\nallow_other = true\n'
        f'[[disks]]\npath = "{disk}"\n'
    )
    assert desktop.run(*CLI, "init", config).returncode == 0
    ran = desktop.run(*CLI, "mount", config)
    assert ran.returncode == 4
    assert "allow_other" in ran.stderr
    assert "Traceback" not in ran.stderr
