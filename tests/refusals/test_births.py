"""`init` and `adopt`: what they refuse, what an interruption leaves, and that a dry run changes nothing."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.command_line import run_cli
from support.loop_disks import DiskFarm
from support.pools import MIB, PoolMount
from support.refusals import write_segment
from support.snapshots import snapshot

pytestmark = [pytest.mark.mounted, pytest.mark.full]

IDENTITY = "user.commitlogfs.identity"


def disks_of(pool: PoolMount) -> list[Path]:
    return [Path(disk) for disk in pool.disks]


def refused(pool: PoolMount, verb: str, *words: str, status: int = 4) -> None:
    """With exactly one line that holds all the words, and nothing changed."""
    before = snapshot(pool.workdir)
    for options in ([], ["--dry-run"]):
        ran = pool.cli(verb, pool.config, *options)
        assert ran.status == status, (ran.out, ran.err)
        assert ran.out == ""
        assert ran.err.startswith(f"commitlogfs: {verb}: ")
        assert ran.err.count("\n") == 1
        assert all(word in ran.err for word in words), ran.err
    assert snapshot(pool.workdir) == before


def interrupt_birth(pool: PoolMount, left: int) -> None:
    """As if `init` or `adopt` had been killed after the first `left` disks (test_birth.py cuts a real one)."""
    for disk in pool.disks[:left]:
        os.setxattr(disk, "user.commitlogfs.birth", b"unfinished")
    for disk in pool.disks[left:]:
        os.removexattr(disk, IDENTITY)


@pytest.fixture
def bare(make_pool: Callable[..., PoolMount]) -> PoolMount:
    """Three empty directories and a configuration, no pool yet."""
    pool = make_pool(3, born=False)
    pool.write_config()
    return pool


@pytest.fixture
def store(bare: PoolMount) -> PoolMount:
    """Directories of a broker in multi-path mode: segments 0 ... 5 in three directories."""
    for index in range(6):
        write_segment(disks_of(bare)[index % 3], index)
    return bare


# --- init --------------------------------------------------------------------------------------------


def test_init_refuses_a_directory_with_anything_in_it(bare: PoolMount) -> None:
    (disks_of(bare)[1] / "note\x1b[2J").touch()
    refused(bare, "init", f"{bare.disks[1]}: not empty (it holds 'note\\x1b[2J')", "adopt")


@pytest.mark.root
def test_init_refuses_a_disk_without_room_for_a_segment(disk_farm: DiskFarm, bare: PoolMount) -> None:
    disk = disk_farm.add("ext4", 64 * MIB).path / "commitlog"
    disk.mkdir()
    bare.disks, bare.segment_size = [bare.disks[0], disk, bare.disks[2]], 64 * MIB
    bare.write_config()
    refused(
        bare, "init", f"{disk}: its filesystem has ", "segments have 67,108,864 (segment_size)", "room for none"
    )
    disk.rmdir()  # then the filesystem of its parent counts
    refused(bare, "init", f"{disk}: its filesystem has ", "smaller segment_size", "[disk-too-small]")


@pytest.mark.root
def test_a_disk_without_room_for_what_is_kept_is_reported(disk_farm: DiskFarm, bare: PoolMount) -> None:
    disk = disk_farm.add("ext4", 64 * MIB).path / "commitlog"
    disk.mkdir()
    bare.disks, bare.segment_size = [bare.disks[0], disk, bare.disks[2]], 20 * MIB
    bare.write_config()
    for options in (["--dry-run"], []):
        made = bare.cli("--json", "init", bare.config, *options)
        reported = {one["code"]: one["disk"] for one in made.json()["findings"]}
        assert reported["disk-too-small"] == str(disk), options
        assert f"warning: {disk}: its filesystem has " in made.err
    told = {check["name"]: check["message"] for check in bare.cli("--json", "doctor", bare.config).json()["checks"]}
    assert told["disk-too-small"].startswith(f"{disk}: its filesystem has ")
    ran = bare.cli("--json", "check", bare.config)
    (finding,) = [one for one in ran.json()["findings"] if one["code"] == "disk-too-small"]
    assert ran.status == 1
    assert finding["disk"] == str(disk)
    assert "it has room for only 2 of them, and the newest 3 are never removed" in finding["message"]
    bare.start()
    bare.make_segments(range(3))
    assert f"{disk}: its filesystem has " in bare.cli("status", bare.name).out


def test_init_refuses_a_disk_of_a_pool_that_has_had_segments(bare: PoolMount) -> None:
    bare.init()
    bare.start()
    bare.make_segments([0])
    bare.stop()
    refused(bare, "init", f"{bare.disks[0]}: not empty")
    (disks_of(bare)[0] / bare.path(0).name).unlink()
    words = (f"{bare.disks[0]}: already a disk of pool ", ", which has had segments;", "`commitlogfs destroy`")
    refused(bare, "init", *words)
    bare.disks = [*bare.disks[:2], bare.workdir / "new"]  # not an interrupted birth: another pool
    Path(bare.disks[2]).mkdir()
    bare.write_config()
    refused(bare, "init", *words)


def test_init_refuses_an_empty_pool_in_use(bare: PoolMount) -> None:
    bare.init()
    bare.start()
    assert "in use by a running commitlogfs; unmount it first" in bare.cli("init", bare.config).err
    bare.kill()
    before = identities_of(bare)
    ran = bare.cli("init", bare.config)
    assert (ran.status, ran.err) == (
        4,
        "commitlogfs: test: is mounted, so its pool is in use; unmount it first\n",
    )
    assert identities_of(bare) == before


def test_init_refuses_an_empty_pool_of_which_a_disk_may_not_be_mounted(bare: PoolMount) -> None:
    bare.init()
    lost = disks_of(bare)[2]
    lost.rename(bare.workdir / "real")
    lost.mkdir()
    refused(bare, "init", "already a disk of pool ", f", and its disk 3 ({lost}) may not be mounted;")


def identities_of(pool: PoolMount) -> list[dict[str, Any]]:
    return [json.loads(os.getxattr(disk, IDENTITY)) for disk in pool.disks]


def test_init_makes_an_empty_pool_anew(bare: PoolMount) -> None:
    bare.init()
    bare.start()
    bare.stop()
    (former,) = {document["pool"] for document in identities_of(bare)}
    bare.disks, bare.segment_size = [bare.disks[1], bare.workdir / "new"], 2 * MIB
    bare.write_config()
    before = snapshot(*disks_of(bare)[:1])
    planned = bare.cli("init", bare.config, "--dry-run", "--json").json()
    assert planned["replaced"] == [former]
    assert snapshot(*disks_of(bare)[:1]) == before
    ran = bare.cli("init", bare.config)
    assert f"in the place of the empty pool {former}" in ran.out
    found = identities_of(bare)
    assert {(document["pool"] == former, document["segment_size"]) for document in found} == {(False, 2 * MIB)}
    assert [[path for _, _, path in document["members"]] for document in found] == [list(map(str, bare.disks))] * 2
    bare.start()
    bare.make_segments(range(2))
    assert [bare.disk_of(index) for index in range(2)] == [0, 1]


def test_init_makes_an_absent_directory_but_not_its_parent(bare: PoolMount) -> None:
    disks_of(bare)[2].rmdir()
    ran = bare.cli("init", bare.config, "--dry-run")
    assert ran.status == 0, ran.err
    assert f"disk 3  {bare.disks[2]} (directory to be made)" in ran.out
    assert not disks_of(bare)[2].exists()
    bare.init()
    assert disks_of(bare)[2].stat().st_mode & 0o777 == 0o700
    assert IDENTITY in os.listxattr(bare.disks[2])
    bare.disks = [bare.workdir / "a/b/c"]
    bare.write_config()
    refused(bare, "init", f"{bare.disks[0]}: neither it nor {bare.workdir}/a/b exists", "mount the disk or make")


def test_init_refuses_what_is_no_directory(bare: PoolMount) -> None:
    disks_of(bare)[0].rmdir()
    disks_of(bare)[0].write_bytes(b"file")
    refused(bare, "init", f"{bare.disks[0]}: not a directory")
    disks_of(bare)[0].unlink()
    disks_of(bare)[0].symlink_to("nowhere")
    refused(bare, "init", f"{bare.disks[0]}: no such directory")


def test_init_accepts_lost_and_found(bare: PoolMount) -> None:
    (disks_of(bare)[0] / "lost+found").mkdir()
    bare.init()


@pytest.mark.parametrize("left", [1, 2])
def test_the_same_init_again_finishes_an_interrupted_one(bare: PoolMount, left: int) -> None:
    bare.init()
    identities = {disk: os.getxattr(disk, IDENTITY) for disk in bare.disks}
    interrupt_birth(bare, left)
    before = snapshot(*disks_of(bare))
    ran = bare.cli("mount", bare.config)
    assert ran.status == 4
    assert f"{bare.disks[left]}: carries no identity" in ran.err
    ran = bare.cli("init", bare.config, "--dry-run")
    assert ran.status == 0
    assert snapshot(*disks_of(bare)) == before
    bare.init()
    assert {disk: os.getxattr(disk, IDENTITY) for disk in bare.disks} == identities
    bare.start()
    bare.make_segments(range(3))
    assert [bare.disk_of(index) for index in range(3)] == [0, 1, 2]


def test_init_dry_run_changes_nothing(bare: PoolMount) -> None:
    before = snapshot(bare.workdir)
    ran = bare.cli("init", bare.config, "--dry-run", "--json")
    assert ran.status == 0
    document = json.loads(ran.out)
    assert document["dry_run"] is True
    assert [disk["path"] for disk in document["disks"]] == list(map(str, bare.disks))
    assert snapshot(bare.workdir) == before


# --- adopt -------------------------------------------------------------------------------------------


def test_adopt_dry_run_changes_nothing_and_adopt_no_segment(store: PoolMount) -> None:
    before = snapshot(store.workdir)
    ran = store.cli("adopt", store.config, "--dry-run")
    assert ran.status == 0, ran.err
    assert "would be taken over: 6 segments of 1MiB" in ran.out
    assert snapshot(store.workdir) == before
    store.adopt()
    after = snapshot(store.workdir)
    changed = {path for path in before if before[path] != after[path]}
    assert changed - {str(store.config)} == set(map(str, store.disks))  # their attributes
    store.start()
    assert len(os.listdir(store.mountpoint)) == 6


def test_adopt_refuses_a_gap(store: PoolMount) -> None:
    (disks_of(store)[1] / store.path(1).name).unlink()
    refused(store, "adopt", f"{store.path(1).name}: 1 segment is missing in the middle of the log")


def test_adopt_refuses_a_duplicate(store: PoolMount) -> None:
    shutil.copy2(disks_of(store)[0] / store.path(0).name, disks_of(store)[1])
    refused(store, "adopt", store.path(0).name, f"{store.disks[0]} and {store.disks[1]}", "cmp")


def test_adopt_refuses_a_wrong_size(store: PoolMount) -> None:
    os.truncate(disks_of(store)[1] / store.path(4).name, MIB // 2)
    refused(store, "adopt", f"{store.disks[1]}/{store.path(4).name}: size {MIB // 2} instead of {MIB}")
    store.config.write_text(store.config.read_text().replace(f"segment_size = {MIB}\n", ""))
    refused(store, "adopt", "segments of different sizes", "--segment-size")


def say_segment_size(pool: PoolMount, size: int) -> None:
    pool.config.write_text(pool.config.read_text().replace(f"segment_size = {MIB}\n", f"segment_size = {size}\n"))


@pytest.mark.parametrize(
    ("configured", "shown"), [(2 * MIB, "2MiB"), (MIB // 2, "512KiB"), (MIB + 4096, "1028KiB")]
)
def test_adopt_names_a_wrong_segment_size_and_its_key(store: PoolMount, configured: int, shown: str) -> None:
    """Names off its boundaries look like alien files, the others like segments of a wrong size: none of them is."""
    say_segment_size(store, configured)
    text = f'{store.config}: segment_size is {shown}, but all 6 segments have 1MiB; write segment_size = "1MiB"'
    refused(store, "adopt", text)


def test_adopt_names_a_wrong_segment_size_beside_a_cut_segment(store: PoolMount) -> None:
    os.truncate(disks_of(store)[1] / store.path(4).name, MIB // 2)
    say_segment_size(store, MIB // 2)
    refused(store, "adopt", "segment_size is 512KiB, but 5 of 6 segments have 1MiB")


def test_adopt_names_the_option_that_is_wrong(store: PoolMount) -> None:
    for arguments in (["--disks", ",".join(map(str, store.disks))], [store.config]):
        ran = store.cli("adopt", *arguments, "--segment-size", "2MiB")
        assert ran.status == 4
        assert ran.err == (
            "commitlogfs: adopt: --segment-size is 2MiB, but all 6 segments have 1MiB; "
            "leave it out, or give --segment-size 1MiB\n"
        )


def test_adopt_refuses_segments_no_pool_can_have(bare: PoolMount) -> None:
    """A size that the configuration would refuse is not recommended."""
    for index in range(3):
        (disks_of(bare)[index] / f"{index * 1000:020d}").write_bytes(bytes(1000))
    refused(bare, "adopt", "all 3 segments have 1kB; 1000 is not a multiple of 4096")
    ran = bare.cli("adopt", "--disks", ",".join(map(str, bare.disks)))
    assert ran.status == 4
    assert "all 3 segments have 1kB; 1000 is not a multiple of 4096" in ran.err


def test_adopt_refuses_alien_files(store: PoolMount) -> None:
    (disks_of(store)[2] / "00000000000000000001").touch()
    refused(store, "adopt", f"{store.disks[2]}/00000000000000000001: alien-file", "move it out")


def test_adopt_refuses_directories_without_a_segment(bare: PoolMount) -> None:
    refused(bare, "adopt", "use `init` to make a new pool")


def test_adopt_refuses_absent_directories(store: PoolMount) -> None:
    shutil.rmtree(store.disks[1])
    refused(store, "adopt", f"{store.disks[1]}: no such directory")


def test_adopt_refuses_a_pool(store: PoolMount) -> None:
    store.adopt()
    refused(store, "adopt", f"{store.disks[0]}: already a disk of pool ")


def test_the_same_adopt_again_finishes_an_interrupted_one(store: PoolMount) -> None:
    store.adopt()
    identities = {disk: os.getxattr(disk, IDENTITY) for disk in store.disks}
    interrupt_birth(store, 2)
    store.adopt()
    assert {disk: os.getxattr(disk, IDENTITY) for disk in store.disks} == identities


@pytest.mark.parametrize(("verb", "kept"), [("adopt", (0, 1, 2)), ("adopt", (2, 3, 4)), ("init", (2,))])
def test_an_unmounted_disk_of_a_pool_is_no_interrupted_birth(
    make_pool: Callable[..., PoolMount], verb: str, kept: tuple[int, ...]
) -> None:
    """Where the directories that are left show no gap, only the end of the first birth tells."""
    pool = make_pool(3)
    pool.start()
    pool.make_segments(range(max(kept) + 1))
    for index in set(range(max(kept) + 1)) - set(kept):
        pool.path(index).unlink()
    pool.stop()
    lost = disks_of(pool)[2]
    lost.rename(pool.workdir / "real")
    lost.mkdir()
    refused(pool, verb, "already a disk of pool ")
    assert os.listxattr(lost) == []


# --- mount --init ------------------------------------------------------------------------------------


def test_mount_init_refuses_what_init_refuses(bare: PoolMount) -> None:
    (disks_of(bare)[1] / "note").touch()
    before = snapshot(bare.workdir)
    disks = ",".join(map(str, bare.disks))
    # Short ones: the mount is named after its mountpoint, and the path of its socket has at most 107 bytes.
    mountpoint, run = bare.workdir.parent / "m", bare.workdir.parent / "r"
    for options in ([], ["--daemon"]):
        env = {**bare.env, "COMMITLOGFS_RUNTIME_DIR": str(run)}
        ran = run_cli("mount", *options, "--init", disks, mountpoint, env=env)
        assert ran.status == 4
        assert f"{bare.disks[1]}: not empty (it holds 'note')" in ran.err
    after = snapshot(bare.workdir)
    del after[str(bare.workdir)]  # the runtime directory was made in it
    del before[str(bare.workdir)]
    assert {path: entry for path, entry in after.items() if not path.startswith(str(bare.runtime))} == before


def test_a_pool_adopted_again_can_have_one_more_disk(striped: PoolMount) -> None:
    """docs/operating.md, "Add a disk"."""
    striped.start()
    striped.stop()
    for disk in striped.disks:
        os.removexattr(disk, "user.commitlogfs.identity")
    added = striped.workdir / "added"
    added.mkdir(mode=0o700)
    striped.disks = [*striped.disks, added]
    striped.adopt()
    striped.start()
    striped.make_segments(range(7, 11))
    assert {striped.disk_of(index) for index in range(7, 11)} == {0, 1, 2, 3}
    assert striped.path(0).stat().st_size == MIB
