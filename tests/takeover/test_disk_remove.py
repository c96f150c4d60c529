"""`commitlogfs disk remove` and `safe-to-remove`: an empty disk leaves the pool of a running mount."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import faults
from support.faults import FaultPlan
from support.freezing import frozen
from support.kept import KeptMount
from support.loop_disks import DiskFarm, LargeBlockDisk, commitlog_directories
from support.pools import PoolMount
from support.timings import WITHOUT_WRITES
from support.waiting import PATIENCE_S, eventually

from commitlogfs.console.errors import RefusedError
from commitlogfs.mount.commands import disk_calls, disk_remove
from commitlogfs.mount.location import control_socket
from commitlogfs.store import layout

pytestmark = [pytest.mark.mounted, pytest.mark.root]


@pytest.fixture
def kept(keep: Callable[..., KeptMount]) -> KeptMount:
    """Four disks; the last one holds nothing and is cordoned."""
    kept = keep(4)
    pool = kept.pool
    assert pool.cli("disk", "cordon", 4, pool.name).status == 0
    pool.make_segments(range(6))
    return kept


def served(pool: PoolMount) -> list[str]:
    return [disk["path"] for disk in pool.status()["disks"]]


def members(directory: Path) -> list[int]:
    document = json.loads(os.getxattr(directory, layout.XATTR_IDENTITY))
    return [number for number, _, _ in document["members"]]


def require_removed(pool: PoolMount, directory: Path) -> None:
    rest = [disk for disk in pool.disks if disk != directory]
    eventually(lambda: pool.status()["members"]["lagging"] == [])
    assert served(pool) == [str(disk) for disk in rest]
    assert [members(disk) for disk in rest] == [[1, 2, 3]] * 3
    assert str(directory) not in pool.config.read_text()
    assert not pool.status()["degraded"]
    pool.disks = rest


def test_the_configuration_is_edited_by_hand_meanwhile(kept: KeptMount, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = kept.pool
    edited = pool.config.read_text() + "# by hand\n"
    answer = control_socket.ask

    def ask(path: Path, verb: str, *arguments: Any, **request: Any) -> dict[str, Any]:
        answered = answer(path, verb, *arguments, **request)
        if verb == "disk-leave" and not request.get("dry_run"):
            pool.config.write_text(edited)
        return answered

    with monkeypatch.context() as patch:
        patch.setattr(control_socket, "ask", ask)
        ran = pool.cli("disk", "remove", 4, pool.name)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err == (
        f"commitlogfs: {pool.config}: another program has changed it meanwhile; repeat the command\n"
    )
    assert pool.config.read_text() == edited
    assert pool.status()["disks"][3]["state"] == "cordoned"
    assert kept.newest_daemon() == kept.daemon
    ran = pool.cli("disk", "remove", 4, pool.name)
    assert ran.status == 0, ran.err
    require_removed(pool, pool.disks[3])


@pytest.mark.parametrize("verb", ["cordon", "uncordon"])
def test_no_cordon_is_changed_beside_a_running_remove(
    kept: KeptMount, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """The disk would get segments, and leave the log with them."""
    pool, refused = kept.pool, []
    rehearse = disk_remove.rehearse

    def rehearse_beside(*arguments: Any) -> None:
        rehearse(*arguments)
        refused.append(pool.cli("disk", verb, 4, pool.name))
        pool.make_segments(range(6, 10))

    with monkeypatch.context() as patch:
        patch.setattr(disk_remove, "rehearse", rehearse_beside)
        ran = pool.cli("disk", "remove", 4, pool.name)
    assert ran.status == 0, ran.err
    assert [one.status for one in refused] == [4]
    reasons = {
        "cordon": f"{pool.disks[3]}: leaves the pool; complete `disk remove`, or keep the disk: `disk uncordon`",
        "uncordon": "another `commitlogfs disk` command is at work; wait for its end",
    }
    assert reasons[verb] in refused[0].err
    require_removed(pool, pool.disks[3])
    assert len(os.listdir(pool.mountpoint)) == 10


def test_the_control_api_lifts_no_cordon_of_a_leaving_disk(kept: KeptMount) -> None:
    pool = kept.pool
    pool.ask("disk-leave", disk="4")
    assert "leaves the pool" in pool.ask("disk-uncordon", disk="4")["refused"]
    assert pool.status()["disks"][3]["state"] == "leaving"
    planned = pool.cli("disk", "uncordon", 4, pool.name, "--dry-run", "--json").json()
    assert (planned["number"], planned["changed"]) == (4, True)
    assert pool.status()["disks"][3]["state"] == "leaving"


def test_a_disk_that_the_edited_file_does_not_name_still_leaves(
    kept: KeptMount, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No daemon can take over, and somebody edits the file: the entry cannot come back, so the disk cannot stay."""
    pool, directory = kept.pool, kept.pool.disks[3]

    def refuse(*_: Any) -> None:
        pool.config.write_text(f"{pool.config.read_text()}# by hand\n")
        raise RefusedError("no daemon could take over")

    with monkeypatch.context() as patch:
        patch.setattr(disk_calls, "replace_daemon", refuse)
        assert pool.cli("disk", "remove", 4, pool.name).status == 4
    assert str(directory) not in pool.config.read_text()
    assert pool.status()["disks"][3]["state"] == "leaving"
    kept.replace()
    require_removed(pool, directory)
    assert pool.cli("disk", "remove", directory, pool.name).status == 0


def test_an_empty_disk_leaves_and_can_come_back(kept: KeptMount) -> None:
    pool = kept.pool
    directory = pool.disks[3]
    eventually(lambda: layout.XATTR_SCRUB in os.listxattr(directory))
    ran = pool.cli("disk", "safe-to-remove", 4, pool.name)
    assert (ran.status, ran.out) == (
        0,
        f"test: {directory}: holds nothing of the pool; `commitlogfs disk remove` takes it out of the pool\n",
    )
    ran = pool.cli("disk", "remove", 4, pool.name)
    assert ran.status == 0, ran.err
    assert ran.out == f"test: disk 4 ({directory}) has left the pool; unmount it\n"
    require_removed(pool, directory)
    assert os.listxattr(directory) == []
    ran = pool.cli("disk", "safe-to-remove", directory, pool.name)  # it may be a typing error
    assert (ran.status, ran.out) == (4, "")
    pool.make_segments(range(6, 9))
    ran = pool.cli("disk", "add", directory, pool.name)
    assert ran.status == 0, ran.err
    assert ran.out.startswith(f"test: {directory} is disk 5 of the pool")  # a number is not used again


def test_a_disk_that_was_unmounted_before_leaves(disk_farm: DiskFarm, keep: Callable[..., KeptMount]) -> None:
    """Nothing is at its path any more, where it would lose its record of the pool."""
    disks = [disk_farm.add_of(LargeBlockDisk) for _ in range(3)]
    pool = keep(disks=commitlog_directories(*disks)).pool
    assert pool.cli("disk", "cordon", 3, pool.name).status == 0
    pool.make_segments(range(4))
    disks[2].detach()
    ran = pool.cli("disk", "remove", 3, pool.name)
    assert (ran.status, ran.out) == (0, f"test: disk 3 ({pool.disks[2]}) has left the pool; unmount it\n"), ran
    assert "; the disk has left the pool, and still records it\n" in ran.err
    assert served(pool) == [str(disk) for disk in pool.disks[:2]]
    assert str(pool.disks[2]) not in pool.config.read_text()
    assert not pool.status()["degraded"]


def test_a_dry_run_changes_nothing(kept: KeptMount) -> None:
    pool = kept.pool
    before = (pool.config.read_text(), pool.status()["members"], pool.status()["disks"][3]["state"])
    ran = pool.cli("disk", "remove", pool.disks[3], pool.name, "--dry-run")
    assert ran.status == 0, ran.err
    assert f"disk 4 ({pool.disks[3]}) would leave the pool" in ran.out
    assert (pool.config.read_text(), pool.status()["members"], pool.status()["disks"][3]["state"]) == before


def test_a_file_that_cannot_be_edited_is_seen_by_a_dry_run(kept: KeptMount) -> None:
    pool = kept.pool
    pool.config.write_text(pool.config.read_text().replace("[[disks]]", '[["disks"]]'))
    before = (pool.config.read_text(), pool.status()["members"])
    for options in ((), ("--dry-run",)):
        ran = pool.cli("disk", "remove", 4, pool.name, *options)
        assert (ran.status, "its header is written otherwise" in ran.err, ran.out) == (2, True, "")
    assert (pool.config.read_text(), pool.status()["members"]) == before


def test_a_disk_that_holds_segments_stays(kept: KeptMount) -> None:
    pool = kept.pool
    before = (pool.config.read_text(), pool.status()["members"])
    ran = pool.cli("disk", "remove", 1, pool.name)
    assert ran.status == 4
    assert ran.err.startswith(
        f"commitlogfs: test: {pool.disks[0]}: holds segments (2); `disk drain` it, and remove it when it is empty"
    )
    assert (pool.config.read_text(), pool.status()["members"]) == before
    fd = os.open(pool.path(0), os.O_RDONLY)
    ran = pool.cli("disk", "safe-to-remove", 1, pool.name)
    os.close(fd)
    assert ran.status == 1
    assert ran.out.startswith(f"test: {pool.disks[0]}: holds 2 segments and 0 other files; open there: ")
    assert f" (pid {os.getpid()}): 1 file" in ran.out
    assert ran.out.endswith("; run `disk drain`\n")
    assert pool.cli("disk", "drain", "--by-expiry", 1, pool.name).status == 0
    assert "run `disk drain`" not in pool.cli("disk", "safe-to-remove", 1, pool.name).out


def test_a_failed_disk_that_holds_segments_is_given_up_or_saved(
    disk_farm: DiskFarm, keep: Callable[..., KeptMount]
) -> None:
    disks = [disk_farm.add() for _ in range(3)]
    for disk in disks:
        (disk.path / "commitlog").mkdir(mode=0o700)
    kept = keep(disks=[disk.path / "commitlog" for disk in disks], retention={"interval": '"1s"'})
    pool = kept.pool
    pool.make_segments(range(6))
    disks[0].turn_read_only()
    pool.make_segments(range(6, 9))
    eventually(lambda: pool.status()["disks"][0]["state"] == "failed")
    ran = pool.cli("disk", "remove", 1, pool.name)
    assert ran.status == 4
    assert ran.err.startswith(
        f"commitlogfs: test: {pool.disks[0]}: holds segments (2); give it up with `disk remove --lost`, or "
        "`disk drain --failing` it, and remove it when it is empty"
    )


def test_a_removed_segment_that_is_still_open_holds_its_disk(kept: KeptMount) -> None:
    pool = kept.pool
    assert pool.cli("disk", "cordon", 1, pool.name).status == 0
    fd = os.open(pool.path(0), os.O_RDONLY)
    for index in range(4):  # a gap would refuse the next mount
        pool.path(index).unlink()
    ran = pool.cli("disk", "remove", 1, pool.name)
    assert ran.status == 4
    assert "holds files outside of the log (1), such as moved or removed segments that are still open" in ran.err
    assert pool.cli("disk", "safe-to-remove", 1, pool.name, "--json").json() == {
        "name": "test",
        "number": 1,
        "path": str(pool.disks[0]),
        "segments": 0,
        "held": 0,
        "held_until": None,
        "left_behind": 0,
        "set_aside": 0,
        "other_files": 1,
        "arriving": None,
        "takes_segments": False,
        "foreign": None,
        "unwritable": False,
        "users": [{"pid": os.getpid(), "command": "python", "files": 1}],
        "safe": False,
    }
    os.close(fd)
    eventually(lambda: pool.cli("disk", "safe-to-remove", 1, pool.name).status == 0)
    assert pool.cli("disk", "remove", 1, pool.name).status == 0


@pytest.mark.skipif(bool(faults.why_not()), reason=faults.why_not() or "can be built")
@pytest.mark.parametrize("taken_over", [False, True])
def test_a_disk_can_leave_as_soon_as_it_is_drained(
    keep: Callable[..., KeptMount], workdir: Path, taken_over: bool
) -> None:
    """The daemon frees the file that was moved last after the disk counts as drained. Each step takes 0.1 s, so
    that it has not done so when it is asked. A file opened under a former daemon is set aside, and freed then."""
    plan = FaultPlan(workdir)
    kept = keep(3, variables=plan.variables)
    pool = kept.pool
    pool.make_segments(range(3))
    assert pool.cli("disk", "cordon", 2, pool.name).status == 0
    pool.make_segments(range(3, 6))
    assert pool.ask("status")["disks"][1]["segments"] == 1
    if taken_over:
        kept.replace()
    plan.slow_down(kept.daemon, 0.05)
    assert pool.cli("disk", "drain", 2, pool.name, "--rate", "1GiB").status == 0
    eventually(lambda: pool.ask("status")["disks"][1]["segments"] == 0)
    assert "refused" not in pool.ask("disk-leave", disk="2", dry_run=True)
    assert pool.ask("disk-content", disk="2")["other_files"] == 0
    plan.disarm()
    assert pool.cli("disk", "remove", 2, pool.name).status == 0


def test_a_foreign_file_keeps_a_disk(kept: KeptMount) -> None:
    pool = kept.pool
    (pool.disks[3] / "photo.jpg").touch()
    ran = pool.cli("disk", "remove", 4, pool.name)
    assert ran.status == 4
    stays = f"test: {pool.disks[3]}: holds no segment of the log, but 'photo.jpg'; move that away first\n"
    assert ran.err == f"commitlogfs: {stays}"
    assert pool.status()["disks"][3]["state"] == "cordoned"
    ran = pool.cli("disk", "safe-to-remove", 4, pool.name)
    assert (ran.status, ran.out) == (1, stays)


def test_an_empty_disk_that_takes_segments_is_not_safe_to_remove(kept: KeptMount) -> None:
    pool = kept.pool
    assert pool.cli("disk", "uncordon", 4, pool.name).status == 0
    ran = pool.cli("disk", "safe-to-remove", 4, pool.name)
    assert (ran.status, ran.out) == (
        1,
        f"test: {pool.disks[3]}: is empty, but takes new segments; `commitlogfs disk remove` takes it out of the "
        "pool, `disk cordon` keeps it empty\n",
    )


def test_a_disk_to_which_a_segment_is_copied_is_not_safe_to_remove(
    kept: KeptMount, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = kept.pool
    answer = control_socket.ask

    def ask(path: Path, verb: str, *arguments: Any, **request: Any) -> dict[str, Any]:
        answered = answer(path, verb, *arguments, **request)
        return {**answered, "arriving": "00000000000000000000"} if verb == "disk-content" else answered

    monkeypatch.setattr(control_socket, "ask", ask)
    ran = pool.cli("disk", "safe-to-remove", 4, pool.name)
    assert (ran.status, ran.out) == (
        1,
        f"test: {pool.disks[3]}: 00000000000000000000 is being copied to it; repeat the command\n",
    )


def test_the_last_disk_that_takes_segments_stays(keep: Callable[..., KeptMount]) -> None:
    pool = keep(2).pool
    assert pool.cli("disk", "cordon", 2, pool.name).status == 0
    ran = pool.cli("disk", "remove", 1, pool.name)
    assert ran.status == 4
    assert "no other disk takes new segments now" in ran.err
    assert pool.cli("disk", "remove", 2, pool.name).status == 0
    ran = pool.cli("disk", "remove", 1, pool.name)
    assert ran.status == 4


def states_of(pool: PoolMount) -> list[tuple[object, object]]:
    """Path and state of each disk; levels change while others write to the filesystem."""
    return [(disk["path"], disk["state"]) for disk in pool.status()["disks"]]


def test_no_disk_leaves_while_another_one_is_missing(kept: KeptMount) -> None:
    """The next daemon would not drop it, and miss it, too."""
    pool = kept.pool
    pool.settings["on_missing"] = '"degraded"'
    pool.write_config()
    away = pool.disks[pool.disk_of(1)]  # not the newest segment
    away.rename(away.with_name("away"))
    assert pool.cli("restart", pool.name).status == 0
    before = (pool.config.read_text(), pool.status()["members"], states_of(pool))
    ran = pool.cli("disk", "remove", 4, pool.name)
    assert ran.status == 4
    assert f"{pool.disks[3]}: cannot leave while another disk is missing ({away})" in ran.err
    assert (pool.config.read_text(), pool.status()["members"], states_of(pool)) == before
    away.with_name("away").rename(away)
    assert pool.cli("restart", pool.name).status == 0
    assert pool.cli("disk", "remove", 4, pool.name).status == 0
    require_removed(pool, pool.disks[3])


def test_told_to_leave_but_still_configured_it_is_served_and_can_stay(kept: KeptMount) -> None:
    """As by a command that was killed in between."""
    pool = kept.pool
    assert pool.ask("disk-leave", disk="4")["changed"]
    assert pool.status()["disks"][3]["state"] == "leaving"
    kept.replace()
    assert pool.status()["disks"][3]["state"] == "leaving"
    pool.make_segments(range(6, 10))
    assert os.listdir(pool.disks[3]) == []
    assert pool.cli("disk", "uncordon", 4, pool.name).status == 0
    assert pool.status()["disks"][3]["state"] == "rw"
    kept.replace()
    assert pool.status()["disks"][3]["state"] == "rw"


@pytest.mark.parametrize("whole", [False, True], ids=["daemon", "keeper-and-daemon"])
def test_not_configured_any_more_it_has_left_with_the_next_daemon(kept: KeptMount, whole: bool) -> None:
    pool = kept.pool
    directory = pool.disks[3]
    pool.ask("disk-leave", disk="4")
    pool.disks = pool.disks[:3]
    pool.write_config()
    if whole:
        kept.kill()
        pool.kill()
        assert pool.cli("umount", pool.mountpoint).status == 0
        pool.start("--watchdog", "0")
    else:
        kept.replace()
    pool.disks = [*pool.disks, directory]
    require_removed(pool, directory)
    assert layout.XATTR_IDENTITY in os.listxattr(directory)
    ran = pool.cli("disk", "remove", directory, pool.name)
    assert ran.status == 0, ran.err
    assert os.listxattr(directory) == []
    assert len(os.listdir(pool.mountpoint)) == 6


def test_only_a_path_that_means_the_disk_is_answered(kept: KeptMount, workdir: Path) -> None:
    """A wrong answer lets somebody pull a disk."""
    pool = kept.pool
    for text, status in ((f"{pool.disks[0]}/", 1), (pool.disks[0].parent, 4), ("9", 4), ("nonsense", 4)):
        assert pool.cli("disk", "safe-to-remove", text, pool.name).status == status, text
    ran = pool.cli("disk", "remove", f"{pool.disks[0]}/", pool.name)
    assert ran.status == 4
    assert "holds segments (2)" in ran.err


def test_an_interrupted_addition_is_undone_by_remove(kept: KeptMount, workdir: Path) -> None:
    """The configuration names a directory that is prepared, and no daemon has been started since."""
    pool = kept.pool
    before = pool.config.read_text()
    new = workdir / "new"
    new.mkdir()
    pool.ask("disk-prepare", directory=str(new))
    pool.config.write_text(before + f'[[disks]]\npath = "{new}"\n')
    assert pool.cli("disk", "remove", new, pool.name, "--dry-run").status == 0
    assert os.listxattr(new) == [layout.XATTR_JOINING]
    assert pool.cli("disk", "remove", new, pool.name, "--json").json()["path"] == str(new)
    assert (pool.config.read_text(), os.listxattr(new)) == (before, [])
    assert pool.cli("restart", pool.name).status == 0


def test_not_configured_any_more_it_does_not_get_segments_again(kept: KeptMount) -> None:
    pool = kept.pool
    pool.ask("disk-leave", disk="4")
    directory = pool.disks[3]
    pool.disks = pool.disks[:3]
    pool.write_config()
    ran = pool.cli("disk", "uncordon", 4, pool.name)
    assert ran.status == 4
    assert f"does not name {directory} any more; complete `disk remove`, or put its entry back" in ran.err
    assert "leaves the pool: repeat `disk remove`" in pool.cli("disk", "list", pool.name).out
    assert pool.cli("disk", "remove", 4, pool.name).status == 0


@pytest.mark.alone
def test_a_disk_that_hangs_is_not_removed(disk_farm: DiskFarm, keep: Callable[..., KeptMount]) -> None:
    """The next daemon would wait for it, and everybody for that daemon."""
    farm = [disk_farm.add("ext4") for _ in range(3)]
    disks = [disk.path / "commitlog" for disk in farm]
    for disk in disks:
        disk.mkdir()
    pool = keep(disks=disks, variables=WITHOUT_WRITES).pool  # the first call that the disk holds is the record
    before = pool.config.read_text()
    with frozen(farm[2], 2 * PATIENCE_S):
        ran = pool.cli("disk", "remove", 3, pool.name)
    assert ran.status == 4
    assert f"{disks[2]}: cannot record the change, and may hang" in ran.err
    assert pool.config.read_text() == before
    eventually(lambda: pool.status()["disks"][2]["state"] == "rw")
    assert pool.cli("disk", "remove", 3, pool.name).status == 0


def test_what_records_nothing_of_the_pool_is_not_removed(kept: KeptMount, workdir: Path) -> None:
    (workdir / "other").mkdir()
    for path, reason in (
        (workdir / "other", "records nothing of this pool"),
        (workdir / "absent", "no such directory"),
    ):
        ran = kept.pool.cli("disk", "remove", path, kept.pool.name)
        assert ran.status == 4
        assert reason in ran.err
    ran = kept.pool.cli("disk", "remove", f"{kept.pool.disks[3]}//", kept.pool.name, "--dry-run")
    assert ran.status == 0, ran.err


def test_taken_out_of_the_configuration_by_hand_it_is_missed(kept: KeptMount) -> None:
    pool = kept.pool
    pool.disks = pool.disks[:3]
    pool.write_config()
    ran = pool.cli("restart", pool.name)
    assert ran.status == 4
    assert "disk 4 of the pool is not in the configuration" in ran.err


def test_an_empty_disk_that_cannot_be_written_is_given_up(kept: KeptMount) -> None:
    """It is safe to unplug, and each command names the one that takes it out of the pool."""
    pool = kept.pool
    pool.disk_settings = {3: {"readonly": "true"}}
    pool.write_config()
    assert pool.cli("restart", pool.name).status == 0
    lost = pool.disks[3]
    remedy = "take it out of the pool as it is: `commitlogfs disk remove --lost`"
    safe = pool.cli("disk", "safe-to-remove", 4, pool.name)
    assert (safe.status, remedy in safe.out) == (0, True), safe
    refused = pool.cli("disk", "remove", 4, pool.name)
    assert (refused.status, remedy in refused.err) == (4, True), refused
    ran = pool.cli("disk", "remove", "--lost", "--yes", 4, pool.name)
    assert ran.status == 0, ran.err
    pool.disk_settings = {}
    require_removed(pool, lost)
    full = pool.cli("disk", "remove", "--lost", "--yes", 1, pool.name)
    assert (full.status, "not lost" in full.err) == (4, True), full
