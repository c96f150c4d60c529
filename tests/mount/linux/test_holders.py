import contextlib
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.tiny_fuse import tiny_fuse

from commitlogfs.mount.linux import holders
from commitlogfs.mount.linux.holders import Holder, HoldKind

pytestmark = pytest.mark.root


@pytest.fixture
def mounted(workdir: Path) -> Iterator[Path]:
    place = workdir / "m nt"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "t", str(place)], check=True)
    (place / "file").write_bytes(bytes(8192))
    yield place
    subprocess.run(["umount", str(place)], check=True)


class Process:
    """A process that does `code`, says so and waits for its end."""

    def __init__(self, code: str, *args: str, wrapper: tuple[str, ...] = ()) -> None:
        text = f"import os, sys, mmap; {code}; print(flush=True); sys.stdin.read()"
        self.process = subprocess.Popen(
            [*wrapper, sys.executable, "-I", "-S", "-c", text, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd="/",
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"\n"
        self.pid = self.process.pid

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


MAP_ONLY = "f = os.open(sys.argv[1], os.O_RDWR); m = mmap.mmap(f, 4096); os.close(f)"


@pytest.mark.parametrize(
    ("code", "kinds"),
    [
        ("os.chdir(sys.argv[2])", {HoldKind.CWD}),
        ("f = os.open(sys.argv[1], os.O_RDONLY)", {HoldKind.FD}),
        ("f = os.open(sys.argv[2], os.O_PATH)", {HoldKind.FD}),
        # mmap.mmap keeps a duplicate of the descriptor.
        (MAP_ONLY, {HoldKind.FD, HoldKind.MAP}),
        ("os.chroot(sys.argv[2])", {HoldKind.ROOT}),
        ("os.chroot(sys.argv[2]); os.chdir('/')", {HoldKind.ROOT, HoldKind.CWD}),
    ],
)
def test_each_way_of_holding(mounted: Path, code: str, kinds: set[HoldKind]):
    assert holders.find_holders(mounted) == []
    with Process(code, str(mounted / "file"), str(mounted)) as process:
        (found,) = holders.find_holders(mounted)
    assert (found.pid, found.kinds, found.uid) == (process.pid, kinds, 0)
    assert found.example_path.startswith(str(mounted))
    assert found.comm.startswith("python")


def test_a_deleted_file_still_holds(mounted: Path):
    with Process("f = os.open(sys.argv[1], os.O_RDONLY); os.unlink(sys.argv[1])", str(mounted / "file")):
        assert holders.find_holders(mounted)[0].kinds == {HoldKind.FD}


def test_what_lies_beside_or_beneath_another_mount_does_not_count(mounted: Path, workdir: Path):
    (workdir / "m nt2").mkdir()
    with Process("os.chdir(sys.argv[1])", str(workdir / "m nt2")):
        assert holders.find_holders(mounted) == []
    assert holders.find_holders(workdir) == []


def test_a_process_in_another_mount_namespace(mounted: Path):
    wrapper = ("unshare", "--mount", "--propagation", "private")
    with Process("os.chdir(sys.argv[1]); f = os.open('.', 0)", str(mounted), wrapper=wrapper) as process:
        (found,) = holders.find_holders(mounted)
        namespace = os.readlink(f"/proc/{process.pid}/ns/mnt")
        assert holders.find_namespaces(mounted.stat().st_dev) == {namespace: process.pid}
    assert (found.pid, found.kinds) == (process.pid, {HoldKind.CWD, HoldKind.FD})
    assert found.namespace == namespace
    assert namespace in holders.describe_holders([found])


def test_ourselves_can_be_left_out(mounted: Path):
    with (mounted / "file").open("rb"):
        assert [holder.pid for holder in holders.find_holders(mounted)] == [os.getpid()]
        assert holders.find_holders(mounted, exclude=[os.getpid()]) == []


@pytest.mark.mounted
@pytest.mark.parametrize("end", [signal.SIGSTOP, signal.SIGKILL])
def test_holders_of_a_hung_or_dead_mount(workdir: Path, end: signal.Signals):
    with held_without_daemon(workdir / "mnt", end) as pid:
        (found,) = holders.find_holders(workdir / "mnt")
    assert (found.pid, found.kinds) == (pid, {HoldKind.FD, HoldKind.MAP})


@pytest.mark.mounted
@pytest.mark.timing
@pytest.mark.parametrize("end", [signal.SIGSTOP, signal.SIGKILL])
def test_holders_of_a_hung_or_dead_mount_are_found_soon(workdir: Path, end: signal.Signals):
    with held_without_daemon(workdir / "mnt", end):
        started = time.monotonic()
        assert holders.find_holders(workdir / "mnt")
        assert time.monotonic() - started < 2


@contextlib.contextmanager
def held_without_daemon(place: Path, end: signal.Signals) -> Iterator[int]:
    """A mount whose daemon has got the signal `end`; the pid of a process that has its file open and mapped."""
    place.mkdir()
    code = "f = os.open(sys.argv[1], os.O_RDONLY); m = mmap.mmap(f, 4096, prot=mmap.PROT_READ)"
    with tiny_fuse(place) as daemon, Process(code, str(place / "file")) as process:
        daemon.send_signal(end)
        yield process.pid
        # Killed in tiny_fuse's abort at the latest: closing needs the daemon.
        subprocess.run(["umount", "-i", "-f", "-l", str(place)], check=True)


def test_the_description_is_one_line_and_bounded():
    some = [Holder(n, "ja\nva", 1000, frozenset({HoldKind.MAP, HoldKind.FD}), "/x") for n in range(1, 8)]
    text = holders.describe_holders(some)
    assert text.startswith("ja\\nva (pid 1, uid 1000: fd, map), ")
    assert text.endswith(", and 2 more")
    assert "\n" not in text
    assert holders.describe_holders([]) == "nobody"


def test_a_mapping_alone_is_found(mounted: Path):
    # Python's mmap keeps a descriptor; without one the mapping alone must be enough.
    with (mounted / "file").open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        (found,) = holders.find_holders(mounted)
        assert HoldKind.MAP in found.kinds
