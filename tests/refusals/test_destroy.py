"""`destroy`: what it refuses, what it removes, and what it leaves alone."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.pools import MIB, PoolMount, segment_name
from support.refusals import write_segment
from support.snapshots import snapshot
from support.terminals import terminal
from support.waiting import eventually

from commitlogfs.store import layout

pytestmark = [pytest.mark.mounted, pytest.mark.full]

MakePool = Callable[..., PoolMount]


def disks_of(pool: PoolMount) -> list[Path]:
    return [Path(disk) for disk in pool.disks]


def records(pool: PoolMount) -> list[str]:
    return [name for disk in pool.disks for name in os.listxattr(disk) if name.startswith("user.commitlogfs.")]


def refused(pool: PoolMount, *words: str, options: tuple[str, ...] = (), status: int = 4) -> None:
    """With exactly one line that holds all the words, and nothing changed on the disks."""
    before = snapshot(*filter(Path.exists, disks_of(pool)))
    for more in (["--yes"], ["--dry-run"]):
        ran = pool.cli("destroy", pool.config, *options, *more)
        assert (ran.status, ran.out) == (status, ""), ran.err
        assert ran.err.startswith("commitlogfs: test: ")
        assert ran.err.count("\n") == 1
        assert all(word in ran.err for word in words), ran.err
    assert snapshot(*filter(Path.exists, disks_of(pool))) == before


def test_an_empty_pool(make_pool: MakePool) -> None:
    pool = make_pool(3)
    pool.start()
    pool.stop()
    (disks_of(pool)[2] / "lost+found").mkdir()
    before = snapshot(*disks_of(pool))
    planned = pool.cli("destroy", pool.config, "--dry-run", "--json").json()
    assert [(disk["number"], disk["path"], disk["segments"]) for disk in planned["disks"]] == [
        (number, str(disk), 0) for number, disk in enumerate(pool.disks, 1)
    ]
    assert (planned["missing_disks"], planned["dry_run"]) == ([], True)
    shown = pool.cli("destroy", pool.config, "--dry-run")
    assert shown.out.startswith(f"test: pool {planned['pool']} would be destroyed:\n  {pool.disks[0]}: the records")
    assert snapshot(*disks_of(pool)) == before
    ran = pool.cli("destroy", pool.config, "--yes")
    assert (ran.status, ran.err) == (0, "")
    assert f"pool {planned['pool']} is destroyed" in ran.out
    assert f"`commitlogfs umount --unguard {pool.mountpoint}` removes the guard" in ran.out
    assert records(pool) == []
    assert [name for disk in disks_of(pool) for name in os.listdir(disk)] == ["lost+found"]
    assert pool.config.exists()
    assert sorted(os.listdir(pool.runtime)) == []
    again = pool.cli("destroy", pool.config, "--yes")
    assert again.status == 1
    assert f"no pool on {pool.disks[0]}" in again.err
    pool.init()


def test_nobody_can_be_asked(make_pool: MakePool) -> None:
    pool = make_pool(2)
    before = snapshot(*disks_of(pool))
    ran = pool.cli("destroy", pool.config)
    assert ran.status == 2
    assert "nobody can be asked; read what would be removed with --dry-run, then add --yes" in ran.err
    assert snapshot(*disks_of(pool)) == before


@pytest.mark.parametrize(("answer", "status"), [("n", 4), ("y", 0)])
def test_it_asks(make_pool: MakePool, answer: str, status: int) -> None:
    pool = make_pool(2)
    with terminal(pool, "destroy", pool.config) as command:
        eventually(lambda: "Destroy it?" in command.text(), shown=command.text)
        command.press(f"{answer}\n")
        assert command.wait() == status
        assert f"{pool.disks[1]}: the records of the pool" in command.text()
    assert bool(records(pool)) == (answer == "n")


def test_it_has_changed_while_the_operator_is_asked(make_pool: MakePool) -> None:
    """The question keeps no lock."""
    pool = make_pool(2)
    with terminal(pool, "destroy", pool.config, "--with-segments") as command:
        eventually(lambda: "Destroy it?" in command.text(), shown=command.text)
        kept = write_segment(disks_of(pool)[1], 0)
        command.press("y\n")
        assert command.wait() == 4
        eventually(lambda: "the pool has changed meanwhile; repeat the command" in command.text())
    assert kept.exists()
    assert records(pool)


def test_a_mounted_pool(make_pool: MakePool) -> None:
    pool = make_pool(2)
    pool.start()
    refused(pool, "daemon is running already")
    pool.kill()
    refused(pool, "is mounted, so its pool is in use; unmount it first")


def test_segments_are_removed_only_if_that_is_said(make_pool: MakePool) -> None:
    pool = make_pool(2)
    pool.start()
    pool.make_segments(range(4))
    pool.stop()
    first, second = disks_of(pool)
    (second / "photo.jpg").write_bytes(b"mine")
    (first / f".{segment_name(4, MIB)}.x7").write_bytes(b"a copy in progress")
    (first / ".commitlogfs").mkdir()
    (first / ".commitlogfs" / f"{segment_name(0, MIB)}.0123abcd").touch()
    (first / ".commitlogfs" / "note").touch()
    refused(pool, f"{first}: holds segments (3, from .", "--with-segments")
    planned = pool.cli("destroy", pool.config, "--with-segments", "--dry-run", "--json").json()
    assert [disk["segments"] for disk in planned["disks"]] == [3, 2]
    assert [disk["set_aside"] for disk in planned["disks"]] == [1, 0]
    assert [disk["unknown"] for disk in planned["disks"]] == [[".commitlogfs/note"], ["photo.jpg"]]
    ran = pool.cli("destroy", pool.config, "--with-segments", "--yes")
    assert ran.status == 0, ran.err
    assert f"  {second}: the records of the pool, 2 segments (2.0 MiB); files of others stay (photo.jpg)" in ran.out
    assert records(pool) == []
    assert os.listdir(second) == ["photo.jpg"]
    assert os.listdir(first) == [".commitlogfs"]
    assert os.listdir(first / ".commitlogfs") == ["note"]


@pytest.mark.root
def test_segments_in_use(make_pool: MakePool) -> None:
    pool = make_pool(2)
    with write_segment(disks_of(pool)[0], 0).open("rb"):
        refused(pool, "open in another process; stop the broker first", options=("--with-segments",))


def test_a_file_that_may_be_the_only_one_of_its_segment(make_pool: MakePool) -> None:
    pool = make_pool(2)
    aside = disks_of(pool)[0] / ".commitlogfs"
    aside.mkdir()
    (aside / f"{segment_name(0, MIB)}.0123abcd.damaged").touch()
    refused(pool, f"{aside}: holds files that were set aside (1)", "--with-segments")
    assert pool.cli("destroy", pool.config, "--with-segments", "--yes").status == 0
    assert not aside.exists()


def test_a_missing_disk_is_named_and_destroyed_later(make_pool: MakePool) -> None:
    pool = make_pool(3)
    lost, away = disks_of(pool)[2], pool.workdir / "away"
    lost.rename(away)
    refused(pool, f"{lost} (disk 3): missing; bring it back, or add --degraded")
    lost.mkdir()  # the bare directory of a disk that is not mounted
    refused(pool, f"{lost} (disk 3): missing")
    ran = pool.cli("destroy", pool.config, "--degraded", "--yes")
    assert ran.status == 0, ran.err
    assert f"{lost}: missing, so it keeps what it has" in ran.out
    lost.rmdir()
    away.rename(lost)
    assert pool.cli("mount", pool.config).status == 4
    ran = pool.cli("destroy", "--degraded", "--disks", lost, "--yes")
    assert (ran.status, records(pool)) == (0, []), ran.err


def test_disks_of_two_pools(make_pool: MakePool) -> None:
    pool = make_pool(2)
    other = pool.workdir / "other"
    other.mkdir()
    assert pool.cli("init", "--disks", other, "--segment-size", "1MiB").status == 0
    pool.disks = [*pool.disks, other]
    pool.write_config()
    refused(pool, f"{other}: records another pool than {pool.disks[0]}")


def test_a_copy_of_a_disk(make_pool: MakePool) -> None:
    pool = make_pool(2)
    copy = pool.workdir / "copy"
    copy.mkdir()
    os.setxattr(copy, layout.XATTR_IDENTITY, os.getxattr(pool.disks[1], layout.XATTR_IDENTITY))
    pool.disks = [*pool.disks, copy]
    pool.write_config()
    refused(pool, f"{copy}: is a copy of {pool.disks[1]}")


def test_while_it_is_interrupted_nothing_uses_the_disks(make_pool: MakePool) -> None:
    pool = make_pool(2)
    first = pool.disks[0]
    identity = os.getxattr(first, layout.XATTR_IDENTITY)
    os.setxattr(first, layout.XATTR_IDENTITY, identity.replace(b'"version":1', b'"version":0'))
    pool.settings["on_missing"] = '"degraded"'
    pool.write_config()
    for verb in ("mount", "check", "init", "adopt"):
        ran = pool.cli(verb, pool.config)
        assert ran.status == 4, verb
        assert f"{first}: is being destroyed; `commitlogfs destroy` completes that" in ran.err, verb
    assert pool.cli("destroy", pool.config, "--yes").status == 0
    assert records(pool) == []


def test_what_a_killed_daemon_has_left_is_removed(make_pool: MakePool) -> None:
    pool = make_pool(2)
    pool.start()
    pool.kill()
    assert pool.cli("umount", pool.mountpoint).status == 0
    left = set(os.listdir(pool.runtime))
    assert {"test.sock", "test.stat", "test.journal"} <= left
    (pool.runtime / "another.sock").touch()
    assert pool.cli("destroy", pool.config, "--yes").status == 0
    assert os.listdir(pool.runtime) == ["another.sock"]


def test_the_journal_of_another_pool_stays(make_pool: MakePool) -> None:
    pool = make_pool(2)
    pool.start()
    pool.kill()
    assert pool.cli("umount", pool.mountpoint).status == 0
    shutil.copy(pool.runtime / "test.journal", pool.workdir / "kept")
    assert pool.cli("destroy", pool.config, "--yes").status == 0
    pool.init()
    shutil.copy(pool.workdir / "kept", pool.runtime / "test.journal")
    assert pool.cli("destroy", pool.config, "--yes").status == 0
    assert os.listdir(pool.runtime) == ["test.journal"]
