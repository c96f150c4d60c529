"""`commitlogfs disk add`: a disk joins the pool of a running mount, although command or daemon die."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import faults
from support.command_line import COMMAND, Ran
from support.faults import FaultPlan
from support.kept import KeptMount
from support.pools import PoolMount, segment_bytes
from support.waiting import PATIENCE_S, eventually

from commitlogfs.mount.location import control_socket
from commitlogfs.store import layout

pytestmark = [pytest.mark.mounted, pytest.mark.root]

with_faults = pytest.mark.skipif(bool(faults.why_not()), reason=faults.why_not() or "can be built")
MOST_STEPS = 40
"""More than the command, or a daemon, has for it."""


@pytest.fixture
def kept(keep: Callable[..., KeptMount]) -> KeptMount:
    kept = keep(3)
    kept.pool.make_segments(range(3))
    return kept


def new_directory(pool: PoolMount, name: str = "new") -> Path:
    directory = pool.workdir / name
    directory.mkdir()
    return directory


def add(pool: PoolMount, directory: Path, *options: str) -> Ran:
    return pool.cli("disk", "add", directory, pool.name, *options)


def replace_newest(kept: KeptMount) -> None:
    """Kill the daemon that the command has started, once it is ready."""
    kept.await_handover()
    kept.replace()


def members(pool: PoolMount) -> list[str]:
    return [disk["path"] for disk in pool.ask("status")["disks"]]


def configured(pool: PoolMount) -> list[str]:
    return [line.split('"')[1] for line in pool.config.read_text().splitlines() if line.startswith("path")]


def require_complete(pool: PoolMount, directory: Path, generation: int = 1) -> None:
    """The directory is a disk of the pool, for every disk, the configuration and the daemon."""
    eventually(lambda: pool.ask("status")["members"] == {"generation": generation, "lagging": [], "given_up": []})
    document = pool.ask("status")
    assert [(disk["number"], disk["state"]) for disk in document["disks"]] == [(n, "rw") for n in (1, 2, 3, 4)]
    assert [disk["path"] for disk in document["disks"]] == configured(pool)
    assert document["disks"][3]["path"] == str(directory)
    lists = []
    for disk in document["disks"]:
        own: dict[str, Any] = json.loads(os.getxattr(disk["path"], layout.XATTR_IDENTITY))
        assert own["number"] == disk["number"]
        lists.append((own["generation"], own["members"]))
    assert lists == [lists[0]] * 4
    assert layout.XATTR_JOINING not in os.listxattr(directory)


def require_untouched(pool: PoolMount, directory: Path, before: str) -> None:
    assert len(members(pool)) == 3
    assert pool.config.read_text() == before
    assert not directory.is_dir() or not os.listxattr(directory)


def test_the_next_segments_use_the_new_disk(kept: KeptMount) -> None:
    pool = kept.pool
    directory = new_directory(pool)
    open_before = os.open(pool.path(0), os.O_RDWR)
    ran = add(pool, directory)
    assert ran.status == 0, ran.err
    assert ran.out == f"{pool.name}: {directory} is disk 4 of the pool; the next segments use it\n"
    require_complete(pool, directory)
    assert "disk-joins" not in [finding["code"] for finding in pool.ask("status")["findings"]]
    assert os.pread(open_before, 4096, 0) == segment_bytes(0, 4096)
    os.close(open_before)
    pool.make_segments(range(3, 11))
    pool.disks = [*pool.disks, directory]
    assert [pool.disk_of(index) for index in range(3, 11)] == [3, 0, 1, 2, 3, 0, 1, 2]
    replace_newest(kept)
    require_complete(pool, directory)
    pool.cli("umount", pool.mountpoint)
    eventually(lambda: pool.daemon is not None and pool.daemon.poll() is not None)
    pool.start()
    require_complete(pool, directory)
    assert len(os.listdir(pool.mountpoint)) == 11


def test_a_directory_that_does_not_exist_is_made(kept: KeptMount) -> None:
    directory = kept.pool.workdir / "made"
    ran = add(kept.pool, directory, "--json")
    assert ran.status == 0, ran.err
    assert ran.json() == {
        "name": kept.pool.name,
        "number": 4,
        "path": str(directory),
        "eligible": True,
        "pid": kept.pool.ask("status")["daemon"]["pid"],
    }
    require_complete(kept.pool, directory)
    assert directory.stat().st_mode & 0o777 == 0o700


def test_a_dry_run_changes_nothing(kept: KeptMount) -> None:
    pool = kept.pool
    directory, before = pool.workdir / "made", pool.config.read_text()
    ran = add(pool, directory, "--dry-run")
    assert ran.status == 0, ran.err
    assert f"{directory} would be made and become disk 4 of the pool (" in ran.out
    assert str(pool.config) in ran.out
    assert add(pool, directory, "--dry-run", "--json").json()["number"] == 4
    require_untouched(pool, directory, before)
    assert not directory.exists()
    assert kept.newest_daemon() == kept.daemon


def test_a_disk_that_the_configuration_names_already_is_added(kept: KeptMount) -> None:
    """By hand, or by a command that was interrupted after it had."""
    pool = kept.pool
    directory = new_directory(pool)
    pool.config.write_text(pool.config.read_text() + f'[[disks]]\npath = "{directory}"\n')
    assert pool.cli("restart", pool.name).status == 4
    ran = add(pool, directory)
    assert ran.status == 0, ran.err
    require_complete(pool, directory)


def test_the_configuration_is_edited_by_hand_meanwhile(kept: KeptMount, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = kept.pool
    directory = new_directory(pool)
    edited = pool.config.read_text() + "# by hand\n"
    answer = control_socket.ask

    def ask(path: Path, verb: str, *arguments: Any, **request: Any) -> dict[str, Any]:
        answered = answer(path, verb, *arguments, **request)
        if verb == "disk-prepare" and not request.get("dry_run"):
            assert layout.XATTR_JOINING in os.listxattr(directory)
            pool.config.write_text(edited)
        return answered

    with monkeypatch.context() as patch:
        patch.setattr(control_socket, "ask", ask)
        ran = add(pool, directory)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err == (
        f"commitlogfs: {pool.config}: another program has changed it meanwhile; repeat the command\n"
    )
    require_untouched(pool, directory, edited)
    assert kept.newest_daemon() == kept.daemon
    assert add(pool, directory).status == 0
    require_complete(pool, directory)


# --- deaths ----------------------------------------------------------------------------------------------


@pytest.fixture
def plan(workdir: Path) -> FaultPlan:
    return FaultPlan(workdir)


def run_dying(pool: PoolMount, plan: FaultPlan, step: int, *arguments: object) -> tuple[int, str]:
    """The exit status and output of a command that dies before its `step`th step."""
    with subprocess.Popen(
        ["/bin/sh", "-c", 'read -r line && exec "$@"', "sh", *COMMAND, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **pool.env, **plan.variables},
    ) as command:
        plan.die_at(command.pid, step)
        out, _ = command.communicate("go\n", timeout=PATIENCE_S)
    return command.returncode, out


@with_faults
@pytest.mark.full
def test_the_command_dies_at_each_step(keep: Callable[..., KeptMount], plan: FaultPlan) -> None:
    """Either nothing is left, or the next daemon completes it; repeated, the command completes in any case."""
    kept = keep(3)
    pool = kept.pool
    expected = 3
    for step in range(1, MOST_STEPS):
        directory = new_directory(pool, f"new{step}")
        status, out = run_dying(pool, plan, step, "disk", "add", directory, pool.name)
        if plan.disarm() < step:
            assert status == 0, out
            assert step > 4, "a file is written, synced and renamed"
            break
        assert status == -signal.SIGKILL
        replace_newest(kept)
        found = members(pool)
        assert found == configured(pool)
        assert len(found) == expected + (str(directory) in found)
        ran = add(pool, directory)
        assert ran.status == (4 if str(directory) in found else 0), ran.err
        expected += 1
        eventually(lambda count=expected: [d["state"] for d in pool.ask("status")["disks"]] == ["rw"] * count)
    else:
        pytest.fail(f"more than {MOST_STEPS} steps")
    assert not [name for name in os.listdir(pool.workdir) if name.startswith(f".{pool.config.name}")]


@with_faults
@pytest.mark.full
def test_the_daemon_dies_at_each_step(keep: Callable[..., KeptMount], plan: FaultPlan) -> None:
    """While it prepares the directory, and while it hands over."""
    kept = keep(3, variables=plan.variables)
    pool = kept.pool
    for step in range(1, MOST_STEPS):
        directory = new_directory(pool, f"new{step}")
        plan.die_at(kept.await_handover(), step)
        ran = add(pool, directory)
        if plan.disarm() < step:
            assert ran.status == 0, ran.err
            assert step > 2
            return
        if ran.status != 0:
            eventually(lambda: pool.cli("status", pool.name).status == 0)
            assert members(pool) == configured(pool)
            repeated = add(pool, directory)
            joined = str(directory) in members(pool)
            assert repeated.status == 0 or joined, (ran.err, repeated.err)
        assert str(directory) in members(pool)
    pytest.fail(f"more than {MOST_STEPS} steps")


def test_prepared_but_not_configured_it_is_forgotten(kept: KeptMount) -> None:
    pool = kept.pool
    directory = new_directory(pool)
    pool.ask("disk-prepare", directory=str(directory))
    kept.replace()
    assert len(members(pool)) == 3
    assert os.listxattr(directory) == [layout.XATTR_JOINING]
    ran = add(pool, directory)
    assert ran.status == 0, ran.err
    require_complete(pool, directory)


@pytest.mark.parametrize("whole", [False, True], ids=["daemon", "keeper-and-daemon"])
def test_configured_it_is_completed_by_the_next_daemon(kept: KeptMount, whole: bool) -> None:
    pool = kept.pool
    directory = new_directory(pool)
    pool.ask("disk-prepare", directory=str(directory))
    pool.config.write_text(pool.config.read_text() + f'[[disks]]\npath = "{directory}"\n')
    pool.disks = [*pool.disks, directory]  # so that `start` writes the same configuration
    if whole:
        kept.kill()
        pool.kill()
        assert pool.cli("umount", pool.mountpoint).status == 0
        pool.start()
    else:
        kept.replace()
    require_complete(pool, directory)
    assert len(os.listdir(pool.mountpoint)) == 3
