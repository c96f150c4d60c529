"""`commitlogfs disk remove --lost`: a dead disk is given up, and the log goes on without it."""

import contextlib
import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.command_line import run_cli
from support.disk_life import recorded_identity
from support.kept import KeptMount
from support.pools import MIB, PoolMount
from support.terminals import terminal
from support.waiting import PATIENCE_S, eventually

from commitlogfs.console.errors import UnreachableError
from commitlogfs.mount.location import control_socket
from commitlogfs.store import layout
from commitlogfs.store.disks import identity

pytestmark = [pytest.mark.mounted, pytest.mark.root]


def hide(pool: PoolMount, index: int) -> Path:
    """The disk is gone: its directory has another name."""
    directory = pool.disks[index]
    hidden = directory.with_name(f"{directory.name}.hidden")
    directory.rename(hidden)
    return hidden


def give_up(pool: PoolMount, disk: object, *options: str) -> str:
    ran = pool.cli("disk", "remove", disk, pool.config, "--lost", *options)
    assert ran.status == 0, ran.err
    return ran.out


def without(pool: PoolMount, index: int) -> None:
    """So that `start` writes the same configuration."""
    assert str(pool.disks[index]) not in pool.config.read_text()
    pool.disks = [disk for number, disk in enumerate(pool.disks) if number != index]


def member_metrics(pool: PoolMount) -> dict[str, int]:
    """The metrics of disks that are not there, and of accepted losses."""
    found = re.findall(
        r"commitlogfs_(?:members|log)_(missing|lagging|given_up|accepted_gaps)\{.*\} (\d+)", pool.metrics()
    )
    return {name: int(value) for name, value in found}


def indexes(pool: PoolMount) -> list[int]:
    return sorted(int(name) // MIB for name in os.listdir(pool.mountpoint))


@pytest.fixture
def kept(keep: Callable[..., KeptMount]) -> KeptMount:
    """Nine segments in turn on three disks: the last one, on the third disk, is the newest."""
    kept = keep(3)
    kept.pool.make_segments(range(9))
    return kept


def test_the_newest_segment_is_lost_while_nothing_is_mounted(kept: KeptMount) -> None:
    """A machine that boots without the disk: no mount is possible until it is given up."""
    pool = kept.pool
    kept.end()
    hidden = hide(pool, 2)
    refused = pool.cli("mount", pool.config)
    assert refused.status == 4
    assert "[newest-segment-missing]" in refused.err
    shown = give_up(pool, 3, "--dry-run")
    assert f"test: Giving up disk 3 ({pool.disks[2]}) loses 3.0 MiB of the log, in 3 ranges of offsets:\n" in shown
    assert "  2,097,152 to 3,145,728\n" in shown
    assert "a broker that restarts gives log offsets from 8,388,608 on to other messages" in shown
    assert pool.cli("mount", pool.config).status == 4
    out = give_up(pool, pool.disks[2], "--yes")
    assert out == f"test: disk 3 ({pool.disks[2]}) is given up, and its gaps are accepted losses; mount it\n"
    lost = pool.disks[2]
    without(pool, 2)
    pool.start("--watchdog", "0")
    status = pool.status()
    assert indexes(pool) == [0, 1, 3, 4, 6, 7]
    assert (status["degraded"], status["segments"]["accepted_gaps"], len(status["segments"]["gaps"])) == (
        False,
        2,
        2,
    )
    assert [given["path"] for given in status["members"]["given_up"]] == [str(lost)]
    assert "with 2 gaps of disks that were given up" in pool.cli("status", pool.name).out
    shown = pool.cli("map", pool.name).out
    assert ", 2 gaps of disks that were given up\n" in shown
    assert f"gap: 1 segment missing from {2 * MIB:020d} on, lost with a disk that was given up" in shown
    assert "bring back" not in shown
    assert pool.cli("map", pool.name, "--json").json()["accepted_gaps"] == [[2 * MIB, 3 * MIB], [5 * MIB, 6 * MIB]]
    checked = pool.cli("check", pool.name).out
    assert "[accepted-loss]" in checked
    assert "[gap]" not in checked
    pool.make_segments([8, 9])  # as a broker that begins again with the first lost offset
    pool.cli("umount", pool.mountpoint)
    hidden.rename(lost)
    pool.disks = [*pool.disks, lost]
    pool.write_config()
    returned = pool.cli("mount", pool.config)
    assert returned.status == 4
    assert f"{lost}: is no member of the pool any longer" in returned.err
    assert "[disk-removed]" in returned.err


def test_a_given_up_disk_returns_with_a_newer_list_of_members(keep: Callable[..., KeptMount]) -> None:
    """The second disk could not record the changes before it gave the first one up, so its list is the older one;
    the log went on there."""
    kept = keep(2, disk_settings={1: {"readonly": "true"}})
    pool = kept.pool
    pool.make_segments(range(9))
    for _ in range(2):
        assert pool.cli("disk", "cordon", 2, pool.name).status == 0
        assert pool.cli("disk", "uncordon", 2, pool.name).status == 0
    kept.end()
    hidden = hide(pool, 0)
    lost, left = pool.disks
    pool.disk_settings = {}
    pool.write_config()
    give_up(pool, 1, "--yes")
    pool.disks = [left]
    kept.start()
    pool.make_segments(range(9, 12))
    kept.end()
    hidden.rename(lost)
    pool.disks = [lost, left]
    pool.settings["on_missing"] = '"degraded"'
    pool.write_config()
    refused = pool.cli("mount", pool.config)
    assert refused.status == 4
    assert f"{left}: records other members than another disk (disk 1 ({lost})" in refused.err
    assert "[members-differ]" in refused.err
    before = [os.getxattr(disk, layout.XATTR_IDENTITY) for disk in pool.disks]
    other = pool.cli("disk", "remove", 2, pool.config, "--lost", "--yes")
    assert (other.status, "records other members" in other.err) == (4, True)
    assert [os.getxattr(disk, layout.XATTR_IDENTITY) for disk in pool.disks] == before
    pool.disks = [left]
    kept.start()
    assert indexes(pool) == [9, 10, 11]


def test_a_missing_disk_of_a_degraded_mount(kept: KeptMount) -> None:
    pool = kept.pool
    pool.make_segments([9, 10])
    kept.end()
    hide(pool, 2)
    pool.settings["on_missing"] = '"degraded"'
    pool.start("--watchdog", "0")
    assert pool.status()["degraded"]
    assert member_metrics(pool) == {"missing": 1, "lagging": 0, "given_up": 0, "accepted_gaps": 0}
    held = os.open(pool.path(0), os.O_RDONLY)
    out = give_up(pool, 3, "--yes", "--json")
    assert '"lost": [[2097152, 3145728], [5242880, 6291456], [8388608, 9437184]], "used_again_from": null' in out
    os.close(held)
    without(pool, 2)
    status = pool.status()
    assert (status["degraded"], status["missing_disks"], status["segments"]["accepted_gaps"]) == (False, [], 3)
    eventually(
        lambda: member_metrics(pool) == {"missing": 0, "lagging": 0, "given_up": 1, "accepted_gaps": 3},
        shown=pool.metrics,
    )
    pool.make_segments([11, 12])
    del pool.settings["on_missing"]
    pool.cli("umount", pool.mountpoint)
    assert pool.daemon is not None
    pool.daemon.wait(PATIENCE_S)
    pool.start("--watchdog", "0")
    assert indexes(pool) == [0, 1, 3, 4, 6, 7, 9, 10, 11, 12]


def test_a_refused_restart_names_only_what_refuses_it(kept: KeptMount) -> None:
    """A degraded mount tolerates the missing disk and its gaps, but not that the newest segment is lost."""
    pool = kept.pool
    pool.settings["on_missing"] = '"degraded"'
    pool.write_config()
    hide(pool, 2)
    ran = pool.cli("restart", pool.name)
    assert ran.status == 4
    assert "[newest-segment-missing]" in ran.err
    assert "[gap]" not in ran.err
    assert "[disk-missing]" not in ran.err


def test_the_daemon_dies_before_it_answers(kept: KeptMount, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has recorded the change, so the configuration must not name the disk again."""
    pool = kept.pool
    pool.make_segments([9, 10])
    pool.settings["on_missing"] = '"degraded"'
    pool.write_config()
    hide(pool, 2)
    assert pool.cli("restart", pool.name).status == 0
    answer = control_socket.ask

    def ask(path: Path, verb: str, *arguments: Any, **request: Any) -> dict[str, Any]:
        answered = answer(path, verb, *arguments, **request)
        if verb == "disk-give-up" and not request.get("dry_run"):
            kept.newest_daemon()
            kept.replace()
            raise UnreachableError("the connection was closed")
        return answered

    with monkeypatch.context() as patch:
        patch.setattr(control_socket, "ask", ask)
        assert pool.cli("disk", "remove", 3, pool.name, "--lost", "--yes").status == 3
    without(pool, 2)
    del pool.settings["on_missing"]
    pool.write_config()
    assert pool.cli("restart", pool.name).status == 0
    assert not pool.status()["degraded"]


@pytest.mark.parametrize(
    "named_by", ["name", *(pytest.param(named, marks=pytest.mark.full) for named in ("config", "mountpoint"))]
)
def test_while_the_daemon_is_away_nothing_is_given_up(keep: Callable[..., KeptMount], named_by: str) -> None:
    """It was killed, and its successor has not started yet. A new mount would take the offline disk back."""
    kept = keep(4, settings={"on_missing": '"degraded"'})
    pool = kept.pool
    pool.make_segments(range(12))
    for number in (3, 4):
        assert pool.cli("disk", "cordon", number, pool.name).status == 0
    pool.make_segments(range(12, 16))
    assert pool.cli("disk", "offline", 4, pool.name).status == 0
    kept.await_handover()
    before = pool.config.read_text()
    kept.kill()
    hide(pool, 2)
    for option in ("--yes", "--dry-run"):
        ran = pool.cli("disk", "remove", 3, getattr(pool, named_by), "--lost", option)
        assert (ran.status, ran.out) == (3, "")
        assert ran.err == (
            "commitlogfs: test: no daemon answers at this moment, but its keeper runs; try again, or see the "
            "daemon's log; after `commitlogfs umount`, this needs no daemon\n"
        )
    kept.go_on()
    assert pool.config.read_text() == before
    status = pool.ask("status")
    assert (status["members"]["given_up"], [disk["number"] for disk in status["offline_disks"]]) == ([], [4])


@pytest.mark.full
def test_a_dead_mount_is_to_be_unmounted_first(kept: KeptMount) -> None:
    pool = kept.pool
    kept.kill()
    pool.kill()
    hide(pool, 2)
    before = pool.config.read_text()
    ran = pool.cli("disk", "remove", 3, pool.config, "--lost", "--yes")
    assert ran.status == 3
    assert ran.err.endswith("; after `commitlogfs umount`, this needs no daemon\n")
    assert pool.config.read_text() == before
    assert pool.cli("umount", pool.mountpoint).status == 0
    give_up(pool, 3, "--yes")
    without(pool, 2)


def test_a_mount_is_made_while_the_operator_is_asked(kept: KeptMount) -> None:
    """The question keeps no lock. The answer comes too late then: only the daemon can give the disk up."""
    pool = kept.pool
    pool.make_segments([9, 10])
    kept.end()
    hide(pool, 2)
    pool.settings["on_missing"] = '"degraded"'
    pool.write_config()
    before = pool.config.read_text()
    with terminal(pool, "disk", "remove", 3, pool.config, "--lost") as command:
        eventually(lambda: "Give it up?" in command.text(), shown=command.text)
        pool.start("--watchdog", "0")
        command.press("y\n")
        assert command.wait() == 4
        eventually(lambda: "its daemon is running already" in command.text(), shown=command.text)
    assert pool.config.read_text() == before
    assert pool.status()["missing_disks"] == [str(pool.disks[2])]


@pytest.mark.full
def test_the_loss_becomes_larger_while_the_operator_is_asked(kept: KeptMount) -> None:
    pool = kept.pool
    kept.end()
    hide(pool, 2)
    before = pool.config.read_text()
    with terminal(pool, "disk", "remove", 3, pool.config, "--lost") as command:
        eventually(lambda: "Give it up?" in command.text(), shown=command.text)
        hidden = hide(pool, 1)
        command.press("y\n")
        assert command.wait() == 4
        eventually(lambda: "the loss has changed meanwhile; repeat the command" in command.text())
    assert pool.config.read_text() == before
    hidden.rename(pool.disks[1])


@pytest.mark.full
def test_the_file_of_a_global_option_is_used(kept: KeptMount) -> None:
    pool = kept.pool
    kept.end()
    hide(pool, 2)
    ran = run_cli("--config", pool.config, "disk", "remove", 3, "--lost", "--yes", env=pool.env)
    assert ran.status == 0, ran.err
    without(pool, 2)


@pytest.mark.parametrize("is_mounted", [True, False], ids=["mounted", "unmounted"])
def test_the_source_of_a_lost_copy_is_the_segment_again(kept: KeptMount, is_mounted: bool) -> None:
    """A broker has it open, so it is still on the disk that it was moved from when the disk of the copy dies."""
    pool = kept.pool
    pool.make_segments(range(9, 12))
    index = 4
    source = pool.disks[pool.disk_of(index)]
    with pool.path(index).open("r+b") as file:
        file.write(b"a message")
    held = os.open(pool.path(index), os.O_RDWR)
    assert pool.cli("disk", "drain", "--rate", "1GiB", source, pool.name).status == 0
    eventually(lambda: pool.disks[pool.disk_of(index)] != source)
    number = pool.disk_of(index)
    pool.make_segments(range(12, 15))
    eventually(lambda: pool.ask("status")["moves"]["current"] is None)
    assert pool.cli("disk", "cancel", source, pool.name).status == 0
    # The newest segments stay, so that a mount without that disk is possible.
    assert pool.cli("disk", "cordon", number + 1, pool.name).status == 0
    pool.make_segments(range(15, 18))
    pool.settings["on_missing"] = '"degraded"'
    pool.write_config()
    kept.kill()
    if not is_mounted:
        pool.kill()
        with contextlib.suppress(OSError):  # the mount is dead
            os.close(held)
        assert pool.cli("umount", pool.mountpoint).status == 0
    hide(pool, number)
    if is_mounted:
        kept.go_on()
        eventually(lambda: pool.ask("status")["missing_disks"] == [str(pool.disks[number])])
        assert index not in indexes(pool)
    give_up(pool, number + 1, "--yes")
    without(pool, number)
    if not is_mounted:
        pool.start("--watchdog", "0")
    eventually(lambda: index in indexes(pool))
    assert pool.path(index).read_bytes().startswith(b"a message")
    assert (source / pool.path(index).name).exists()
    eventually(lambda: not [gap for gap in pool.status()["segments"]["gaps"] if gap[0] == index * MIB])
    if is_mounted:
        os.close(held)
    eventually(lambda: "event=put_back" in pool.log_path.read_text())


def test_another_gap_still_refuses_a_mount(kept: KeptMount) -> None:
    pool = kept.pool
    kept.end()
    hide(pool, 2)
    give_up(pool, 3, "--yes")
    (pool.disks[0] / pool.path(3).name).unlink()
    refused = pool.cli("mount", pool.config)
    assert refused.status == 4
    assert "[gap]" in refused.err


def test_a_disk_that_works_is_not_given_up(kept: KeptMount) -> None:
    pool = kept.pool
    before = (pool.config.read_text(), pool.status()["members"])
    ran = pool.cli("disk", "remove", 1, pool.name, "--lost", "--yes")
    assert ran.status == 4
    assert f"{pool.disks[0]}: is rw, not lost; cordon it" in ran.err
    assert (pool.config.read_text(), pool.status()["members"]) == before
    assert pool.cli("disk", "drain", 1, pool.name, "--by-expiry").status == 0
    ran = pool.cli("disk", "remove", 1, pool.name, "--lost", "--yes")
    assert ran.status == 4
    assert (
        "is draining, not lost; wait until it is empty and use `disk remove`, or detach it if it is dead" in ran.err
    )
    assert pool.cli("disk", "cancel", 1, pool.name).status == 0
    kept.end()
    ran = pool.cli("disk", "remove", 1, pool.config, "--lost", "--yes")
    assert ran.status == 4
    assert f"{pool.disks[0]}: is there and can be read, so it is not lost" in ran.err
    assert pool.config.read_text() == before[0]


def test_nobody_is_asked_without_a_terminal(kept: KeptMount) -> None:
    pool = kept.pool
    kept.end()
    hide(pool, 2)
    ran = pool.cli("disk", "remove", 3, pool.config, "--lost")
    assert ran.status == 2
    assert ran.err.endswith(
        "commitlogfs: standard input is not a terminal, so the loss cannot be confirmed; read what is lost with "
        "--dry-run, then add --yes\n"
    )
    assert pool.cli("mount", pool.config).status == 4


def test_repeated_after_the_configuration_was_changed(kept: KeptMount) -> None:
    """As by a command that was killed before the disks recorded the change."""
    pool = kept.pool
    kept.end()
    hide(pool, 2)
    lost = pool.disks[2]
    pool.disks = pool.disks[:2]
    pool.write_config()
    assert pool.cli("mount", pool.config).status == 4
    assert "is given up" in give_up(pool, lost, "--yes")
    pool.start("--watchdog", "0")
    eventually(lambda: not pool.status()["degraded"])


def test_a_loss_that_no_disk_records_leaves_the_configuration(
    kept: KeptMount, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = kept.pool
    kept.end()
    hide(pool, 2)
    before = pool.config.read_bytes()

    def refuse(*_: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(identity, "write_identity", refuse)
        ran = pool.cli("disk", "remove", 3, pool.config, "--lost", "--yes")
    assert ran.status == 4
    assert "no disk could record the change; repair one, and repeat the command" in ran.err
    assert pool.config.read_bytes() == before
    give_up(pool, 3, "--yes")
    without(pool, 2)


@pytest.mark.parametrize("is_mounted", [True, False])
def test_a_disk_that_lies_at_the_path_of_the_lost_one_stays(kept: KeptMount, is_mounted: bool) -> None:
    """The entry of the configuration is its own by now."""
    pool = kept.pool
    kept.end()
    hide(pool, 1)
    pool.disks[2].rename(pool.disks[1])
    pool.disks = pool.disks[:2]
    pool.settings["on_missing"] = '"degraded"'
    pool.start("--watchdog", "0")
    if not is_mounted:
        kept.end()
    give_up(pool, 2, "--yes")
    assert str(pool.disks[1]) in pool.config.read_text()
    if not is_mounted:
        pool.start("--watchdog", "0")
    assert [disk["number"] for disk in pool.ask("status")["disks"]] == [1, 3]
    assert indexes(pool) == [0, 2, 3, 5, 6, 8]


def test_no_disk_joins_at_the_path_of_another_one(kept: KeptMount) -> None:
    """One entry of the configuration would stand for both."""
    pool = kept.pool
    kept.end()
    hide(pool, 1)
    pool.disks[1].mkdir()
    pool.settings["on_missing"] = '"degraded"'
    pool.start("--watchdog", "0")
    before = pool.config.read_bytes()
    ran = pool.cli("disk", "add", pool.disks[1], pool.name)
    assert (ran.status, ran.out) == (4, "")
    assert ran.err == (
        f"commitlogfs: test: {pool.disks[1]}: is the path of disk 2 of this pool; mount the new disk elsewhere, or "
        "give that one up first: `commitlogfs disk remove --lost 2`\n"
    )
    assert pool.config.read_bytes() == before
    give_up(pool, 2, "--yes")
    assert pool.cli("disk", "add", pool.disks[1], pool.name).status == 0
    eventually(lambda: [disk["number"] for disk in pool.ask("status")["disks"]] == [1, 3, 4])


@pytest.mark.parametrize("is_mounted", [True, False])
def test_a_disk_that_dies_at_another_path_is_given_up(kept: KeptMount, is_mounted: bool) -> None:
    """As after docs/runbooks/other-machine.md: all disks have other paths than when they joined."""
    pool = kept.pool
    kept.end()
    former, pool.disks = pool.disks, [disk.with_name(f"other-{disk.name}") for disk in pool.disks]
    for disk, there in zip(former, pool.disks, strict=True):
        disk.rename(there)
    pool.settings["on_missing"] = '"degraded"'
    kept.start()
    eventually(lambda: paths_on_record(pool.disks[0]) == list(map(str, pool.disks)))
    lost = pool.disks[1]
    if not is_mounted:
        kept.end()
    hide(pool, 1)
    if is_mounted:
        kept.await_handover()
        kept.replace()
        assert pool.status()["missing_disks"] == [str(lost)]
        of_lost = [one["code"] for one in pool.status()["findings"] if one["disk"] == str(lost)]
        assert of_lost == ["disk-missing"]
    assert str(lost) in give_up(pool, lost, "--dry-run")
    give_up(pool, 2, "--yes")
    assert str(lost) not in pool.config.read_text()
    without(pool, 1)
    if is_mounted:
        assert pool.cli("restart", pool.name).status == 0
    else:
        del pool.settings["on_missing"]
        kept.start()
    assert indexes(pool) == [0, 2, 3, 5, 6, 8]


def test_disks_that_have_exchanged_their_paths(kept: KeptMount) -> None:
    """The path of one that has left is free for another disk."""
    pool = kept.pool
    kept.end()
    there = hide(pool, 0)
    pool.disks[1].rename(pool.disks[0])
    there.rename(pool.disks[1])
    kept.start()
    exchanged = [str(pool.disks[number]) for number in (1, 0, 2)]
    eventually(lambda: paths_on_record(pool.disks[2]) == exchanged)
    assert pool.cli("disk", "drain", 2, pool.name, "--rate", "1GiB").status == 0
    pool.make_segments(range(9, 12))
    eventually(lambda: pool.cli("disk", "remove", pool.disks[0], pool.name).status == 0)
    ran = pool.cli("disk", "add", pool.disks[0], pool.name)
    assert ran.status == 0, ran.err
    eventually(lambda: [disk["number"] for disk in pool.ask("status")["disks"]] == [1, 3, 4])


def paths_on_record(disk: Path) -> list[str]:
    """The paths of the members, as a disk records them."""
    return [path for _, _, path in recorded_identity(disk)["members"]]


def test_a_missing_disk_that_is_at_its_path_is_not_given_up(keep: Callable[..., KeptMount]) -> None:
    """As while nothing is mounted. Once it is detached, it can be."""
    kept = keep(3, settings={"on_missing": '"degraded"'})
    pool = kept.pool
    pool.make_segments(range(9))
    assert pool.cli("disk", "cordon", 2, pool.name).status == 0
    pool.make_segments(range(9, 13))
    assert pool.cli("disk", "offline", 2, pool.name).status == 0
    kept.await_handover()
    for verb in (("remove", "--lost", "--yes", 2), ("replace", 2, pool.workdir / "new", "--yes")):
        ran = pool.cli("disk", *verb, pool.name)
        assert (ran.status, "is offline, not lost; `disk online 2` takes it back" in ran.err) == (4, True), ran
    missing = pool.cli("disk", "remove", pool.disks[1], pool.name)
    assert (missing.status, "is offline; `disk online 2`" in missing.err) == (4, True), missing
    hide(pool, 1)
    assert pool.cli("disk", "remove", "--lost", "--dry-run", 2, pool.name).status == 0


def test_a_disk_that_is_back_and_refused_is_not_given_up(keep: Callable[..., KeptMount]) -> None:
    kept = keep(3, settings={"on_missing": '"degraded"'})
    pool = kept.pool
    pool.make_segments(range(10))
    hidden = hide(pool, 1)
    kept.await_handover()
    kept.replace()
    for verb in (("remove",), ("remove", "--lost", "--dry-run"), ("drain",)):
        ran = pool.cli("disk", *verb, pool.disks[1], pool.name)
        if "--lost" in verb:
            assert ran.status == 0, ran.err
        else:
            assert (ran.status, "or give it up: `commitlogfs disk remove --lost 2`" in ran.err) == (4, True), ran
    (hidden / pool.path(0).name).write_bytes(b"x" * MIB)  # which refuses its return
    hidden.rename(pool.disks[1])
    eventually(lambda: "disk-not-taken-back" in [finding["code"] for finding in pool.status()["findings"]])
    ran = pool.cli("disk", "remove", "--lost", "--yes", 2, pool.name)
    assert (ran.status, "is at its path, not lost" in ran.err) == (4, True), ran
    assert 0 in indexes(pool)


@pytest.mark.full
@pytest.mark.parametrize("verb", ["add", "remove --lost"])
def test_no_verb_takes_a_segment_away_by_a_disk_that_is_refused(keep: Callable[..., KeptMount], verb: str) -> None:
    """Its hand-over would also go to a daemon that finds two files of a segment, and serves neither."""
    kept = keep(4, settings={"on_missing": '"degraded"'})
    pool = kept.pool
    pool.make_segments(range(11))
    hidden, _dead = hide(pool, 1), hide(pool, 3)
    kept.await_handover()
    kept.replace()
    (hidden / pool.path(0).name).write_bytes(b"x" * MIB)
    hidden.rename(pool.disks[1])
    eventually(lambda: "disk-not-taken-back" in [finding["code"] for finding in pool.status()["findings"]])
    before = pool.config.read_bytes()
    arguments = [pool.workdir / "new"] if verb == "add" else [4, "--yes"]
    ran = pool.cli("disk", *verb.split(), *arguments, pool.name)
    assert (ran.status, "[duplicate-segment]" in ran.err) == (4, True), ran
    assert pool.config.read_bytes() == before
    assert 0 in indexes(pool)
    (pool.disks[1] / pool.path(0).name).unlink()
    ran = pool.cli("disk", *verb.split(), *arguments, pool.name)
    assert ran.status == 0, ran.err
    eventually(lambda: indexes(pool) == [index for index in range(11) if index % 4 != 3])


@pytest.mark.parametrize("is_mounted", [True, False])
def test_of_two_missing_disks_the_loss_names_the_other_one(
    keep: Callable[..., KeptMount], is_mounted: bool
) -> None:
    """No disk records which segments the two hold. What the other one has counts as lost until it is back."""
    kept = keep(4, settings={"on_missing": '"degraded"'})
    pool = kept.pool
    pool.make_segments(range(17))  # the newest is on the first disk
    if not is_mounted:
        kept.end()
    hide(pool, 1)
    other = hide(pool, 2)
    if is_mounted:
        kept.await_handover()
        kept.replace()
    shown = give_up(pool, 2, "--dry-run")
    assert (
        f"Some of these may be on {pool.disks[2]}, missing as well: they count as lost until that is back." in shown
    )
    give_up(pool, 2, "--yes")
    if not is_mounted:
        without(pool, 1)
        pool.start("--watchdog", "0")
    other.rename(other.with_name(other.name.removesuffix(".hidden")))
    eventually(lambda: not pool.status()["degraded"])
    eventually(lambda: lost_segments(pool.disks[0]) == {1, 5, 9, 13})
    assert indexes(pool) == [index for index in range(17) if index % 4 != 1]


def lost_segments(disk: Path) -> set[int]:
    """Indexes of the segments that a disk records as accepted losses."""
    dirfd = os.open(disk, os.O_RDONLY)
    try:
        found = identity.read_identity(dirfd, str(disk))
    finally:
        os.close(dirfd)
    assert found is not None
    return {index for loss in found.membership.losses for run in loss.runs for index in run.indexes()}
