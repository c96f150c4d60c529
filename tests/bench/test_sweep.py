"""The remains of an aborted run are removed, and nothing else."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.processes import waits_for_fuse
from support.tiny_fuse import tiny_fuse
from support.waiting import PATIENCE_S, eventually

from commitlogfs.bench import sweep
from commitlogfs.mount.linux import mountinfo
from commitlogfs.mount.location import guard

pytestmark = pytest.mark.root

ABORTED_RUN = """
import os, subprocess, sys
from pathlib import Path
from commitlogfs.bench import sweep
from support.loop_disks import LoopDisk, MIB
from commitlogfs.mount.location import guard
base = sweep.create_base("demo")
os.environ[sweep.RUNS_VARIABLE] = f"/of/another:{base}"
elsewhere = base.parent / "elsewhere"
elsewhere.mkdir()
sweep.claim(base, elsewhere)
guard.raise_guard(elsewhere / "commitlog")
LoopDisk.create(base / "some test", "ext4", 16 * MIB)
(base / "raw").write_bytes(bytes(MIB))
subprocess.run(["losetup", "-f", base / "raw"], check=True)
guard.raise_guard(base / "guarded/commitlog")
sleeper = subprocess.Popen(["sleep", "1000"], cwd=base / "some test/disk/disk", stdout=subprocess.DEVNULL)
print(base, sleeper.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def _abort_a_run(parent: Path) -> tuple[Path, int]:
    environment = {
        **os.environ,
        "TMPDIR": str(parent),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    done = subprocess.run(
        [sys.executable, "-c", ABORTED_RUN], env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == -9
    base, pid = done.stdout.split(" ")
    return Path(base), int(pid)


def test_an_aborted_run_is_swept(workdir: Path, monkeypatch: pytest.MonkeyPatch):
    base, sleeper = _abort_a_run(workdir)
    assert base.parent == workdir
    # It has been started, but the kernel shows its environment a moment later only.
    eventually(lambda: os.fsencode(base) in Path(f"/proc/{sleeper}/environ").read_bytes())
    monkeypatch.setenv("TMPDIR", str(workdir))

    found = "\n".join(sweep.sweep_stale())

    assert f"process {sleeper} (sleep)" in found
    assert "(ext4)" in found
    assert "/dev/loop" in found
    assert os.listdir(workdir) == []
    assert mountinfo.mounts_below(workdir) == ()
    backing = [file.read_text() for file in Path("/sys/block").glob("loop*/loop/backing_file")]
    assert not [line for line in backing if str(workdir) in line]
    assert sweep.sweep_stale() == []


def test_a_living_run_and_doubtful_ones_are_left_alone(workdir: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TMPDIR", str(workdir))
    living = sweep.create_base("test")
    owner = json.loads((living / "owner.json").read_text())
    uncertain = {
        "nothing": None,
        "torn": "{",
        "elsewhere": json.dumps({**owner, "pid_namespace": "pid:[1]", "start_ticks": 1}),
    }
    for name, text in uncertain.items():
        (workdir / (sweep.prefix_of("test") + name)).mkdir()
        if text is not None:
            (workdir / (sweep.prefix_of("test") + name) / "owner.json").write_text(text)
    (workdir / (sweep.prefix_of("test") + "link")).symlink_to("/")
    before = sorted(os.listdir(workdir))
    assert sweep.sweep_stale() == []
    assert sorted(os.listdir(workdir)) == before

    # The same pid, but another process: its number was used again.
    (living / "owner.json").write_text(json.dumps({**owner, "start_ticks": 1}))
    assert sweep.sweep_stale() == [f"{living.name}: files only"]
    assert not living.exists()


def test_two_runs_that_start_at_once_sweep_the_same_remains(workdir: Path, monkeypatch: pytest.MonkeyPatch):
    """As the workers of pytest-xdist do."""
    monkeypatch.setenv("TMPDIR", str(workdir))
    for _ in range(200):
        base = sweep.create_base("test")
        owner = json.loads((base / "owner.json").read_text())
        (base / "owner.json").write_text(json.dumps({**owner, "start_ticks": 1}))
    with ThreadPoolExecutor() as threads:
        sweeps = [threads.submit(sweep.sweep_stale) for _ in range(4)]
        assert all(line.endswith("files only") for each in sweeps for line in each.result())
    assert os.listdir(workdir) == []


@pytest.mark.mounted
def test_a_fuse_mount_whose_daemon_hangs_is_swept(workdir: Path):
    place = workdir / "mnt"
    place.mkdir()
    with tiny_fuse(place, hang_after_read=True):
        stuck = subprocess.Popen(["stat", "-f", str(place)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        eventually(lambda: waits_for_fuse(stuck.pid))
        assert sweep.detach_mounts(workdir) == [f"mount {place} (fuse.commitlogfs)"]
        assert stuck.wait(PATIENCE_S) != 0
    assert mountinfo.find_mount(place) is None


def test_a_tree_with_immutable_directories_can_be_removed_but_not_a_mounted_one(workdir: Path):
    guard.raise_guard(workdir / "tree/a/commitlog")
    (workdir / "tree/link").symlink_to("/etc")
    place = workdir / "tree/mnt"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "t", str(place)], check=True)
    with pytest.raises(OSError, match="still has mounts"):
        sweep.remove_tree(workdir / "tree")
    subprocess.run(["umount", str(place)], check=True)
    sweep.remove_tree(workdir / "tree")
    assert os.listdir(workdir) == []


CALLS_ANOTHER = """
import os, select, subprocess, sys
watched = os.pidfd_open(int(sys.argv[1]))
print("watching", flush=True)
select.select([watched], [], [])
print(subprocess.Popen(["sleep", "1000"], stdout=subprocess.DEVNULL).pid, flush=True)
select.select([], [], [])
"""


def test_processes_that_come_when_others_die_are_ended_too(workdir: Path, monkeypatch: pytest.MonkeyPatch):
    """As a daemon gets itself another keeper: between the end of the one and its own."""
    monkeypatch.setenv(sweep.RUNS_VARIABLE, str(workdir))
    watched = subprocess.Popen(["sleep", "1000"])
    watcher = subprocess.Popen(
        [sys.executable, "-c", CALLS_ANOTHER, str(watched.pid)], stdout=subprocess.PIPE, text=True
    )
    assert watcher.stdout is not None
    assert watcher.stdout.readline() == "watching\n"
    called: list[int] = []
    kill = os.kill

    def kill_slowly(pid: int, number: int) -> None:
        kill(pid, number)
        if pid == watched.pid:
            watched.wait()
            assert watcher.stdout is not None
            called.append(int(watcher.stdout.readline()))

    monkeypatch.setattr(os, "kill", kill_slowly)
    found = sweep.kill_processes(workdir)
    watcher.communicate()
    (late,) = called
    assert not Path(f"/proc/{late}").exists() or "State:\tZ" in Path(f"/proc/{late}/status").read_text()
    assert [line.split()[1] for line in found] == [str(watched.pid), str(watcher.pid), str(late)]
