"""A container has a copy of the mount in a mount namespace of its own, which no unmount on the host reaches."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.command_line import COMMAND
from support.pools import PoolMount

from commitlogfs.mount.linux import mountinfo

pytestmark = [pytest.mark.mounted, pytest.mark.root]

PRIVATE = ("unshare", "--mount", "--propagation", "private")


@contextmanager
def container(segment: Path) -> Iterator[int]:
    """The pid of a process in a container that has a segment open."""
    code = "import sys; f = open(sys.argv[1], 'rb'); print('open', flush=True); sys.stdin.read()"
    command = [*PRIVATE, sys.executable, "-c", code, str(segment)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        yield process.pid
        process.stdin.close()


def test_a_segment_that_a_container_holds_keeps_the_mount(mounted: PoolMount) -> None:
    mounted.make_segments([0])
    with container(mounted.path(0)) as pid:
        namespace = os.readlink(f"/proc/{pid}/ns/mnt")
        done = mounted.cli("umount", mounted.mountpoint)
        assert done.status == 4
        assert f"(pid {pid}, uid 0: fd; mount namespace {namespace})" in done.err
        assert mountinfo.find_mount(mounted.mountpoint) is not None
    assert mounted.cli("umount", mounted.mountpoint).status == 0


def test_status_where_it_is_not_mounted(mounted: PoolMount) -> None:
    here = mounted.cli("status", mounted.name)
    assert "not mounted in this mount namespace" not in here.out
    script = f'umount --no-canonicalize "$0" && exec {COMMAND[0]} status "$1"'
    done = subprocess.run(
        [*PRIVATE, "sh", "-c", script, str(mounted.mountpoint), mounted.name],
        capture_output=True,
        text=True,
        env={**os.environ, **mounted.env},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"{mounted.mountpoint} is not mounted in this mount namespace" in " ".join(done.stdout.split())
