"""`commitlogfs restore` of damaged segments: a right copy takes their place, and the damaged file is kept."""

import json
import os
import stat
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash
from support import checksums, repairs, scrubs
from support.checksums import NEWEST, await_checksums, backing
from support.filling import fill_completely
from support.loop_disks import DiskFarm
from support.pools import MIB, PoolMount
from support.records import make_sealed
from support.repairs import REPAIRED, ROT, content, files_aside, files_of, restore, rot, rotten, set_aside
from support.scrubs import damaged, records_of, scrub
from support.waiting import PATIENCE_S, eventually

from commitlogfs.store import layout
from commitlogfs.store.scrub.verdict import Kind, format_verdict, whole_verdict

pytestmark = [pytest.mark.mounted, pytest.mark.root]

COUNT = 9
INDEX = 4


@pytest.fixture
def filled(make_pool: Callable[..., PoolMount]) -> PoolMount:
    """Nine segments of records on three disks; all sealed ones have a checksum."""
    pool = make_pool(3)
    pool.start()
    scrubs.fill(pool, range(COUNT))
    await_checksums(pool, COUNT - NEWEST)
    return pool


@pytest.fixture
def slave(filled: PoolMount, workdir: Path) -> Path:
    return repairs.make_slave(filled, workdir / "slave", range(COUNT))


class Reader(threading.Thread):
    """Opens a segment anew and reads it, again and again."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._is_wanted = True
        self.seen: list[bytes] = []
        """Contents that it has read, without repetitions."""
        self.failures: list[OSError] = []

    def run(self) -> None:
        while self._is_wanted:
            try:
                data = self._path.read_bytes()
            except OSError as error:
                self.failures.append(error)
                continue
            if not self.seen or self.seen[-1] != data:
                self.seen.append(data)

    def end(self) -> None:
        self._is_wanted = False
        self.join(PATIENCE_S)


def test_a_rotten_segment_is_repaired_under_its_readers(filled: PoolMount, slave: Path) -> None:
    pool = filled
    os.chmod(pool.path(INDEX), 0o640)
    rot(pool, INDEX)
    before, former = pool.path(INDEX).stat(), backing(pool, INDEX)
    name = pool.path(INDEX).name
    assert "still damaged" not in restore(pool, "--from", slave, "--dry-run")
    assert damaged(pool).keys() == {name}
    reader = Reader(pool.path(INDEX))
    with pool.path(INDEX).open("r+b", buffering=0) as opened:
        reader.start()
        eventually(lambda: bool(reader.seen))
        assert restore(pool, "--from", slave).startswith(REPAIRED)
        assert pool.path(INDEX).read_bytes() == content(pool, INDEX)
        eventually(lambda: len(reader.seen) == 2)
        reader.end()
        assert (reader.seen, reader.failures) == ([rotten(pool, INDEX), content(pool, INDEX)], [])
        assert os.pread(opened.fileno(), MIB, 0) == rotten(pool, INDEX)

        (copy,) = files_of(pool, INDEX)
        assert copy.parent != former.parent
        after = pool.path(INDEX).stat()
        assert (after.st_mtime_ns, stat.S_IMODE(after.st_mode)) == (before.st_mtime_ns, 0o640)
        assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
        assert checksums.is_valid(copy)
        checksums.require_right(pool, [INDEX])
        eventually(lambda: os.listxattr(copy) == [layout.XATTR_CHECKSUM])

        eventually(lambda: len(set_aside(pool)) == 1)
        (aside,) = set_aside(pool)
        assert aside["path"] == str(*files_aside(pool))
        assert aside["path"].startswith(f"{former.parent}/.commitlogfs/{name}.")
        assert aside["path"].endswith(".damaged")
        assert Path(aside["path"]).read_bytes() == rotten(pool, INDEX)
        assert (aside["segment"], aside["disk"], aside["kind"]) == (name, str(former.parent), "rotted")
        assert MIB <= aside["bytes"] < 2 * MIB  # with its attributes
        assert damaged(pool) == {}
        assert scrub(pool) == {}
    pool.require_logged("event=repaired ")
    status, metrics, log = pool.ask("status"), pool.metrics(), pool.log_since_start()
    assert (status["moves"]["repaired"], status["segments"]["retired"]) == (1, 0)
    assert all(finding["code"] != "damaged-segment" for finding in status["findings"])
    assert 'commitlogfs_segments_repaired_total{pool="test"} 1.0' in metrics
    assert f'commitlogfs_set_aside_bytes{{disk="{former.parent}",pool="test"}} 1.0' in metrics
    assert log.count("event=repaired ") == log.count("event=set_aside ") == 1
    assert "Set aside: 1 damaged file of repaired segments" in pool.cli("status", pool.name).out
    shown = pool.cli("scrub", "status", pool.name)
    assert (shown.status, f"{aside['path']}: rotted, repaired" in shown.out) == (0, True)
    assert "reads the damaged files until its restart" in " ".join(shown.out.split())
    assert restore(pool, "--from", slave) == "test: the log has no gap\n"


def test_a_segment_that_is_damaged_again_is_repaired_again(filled: PoolMount, slave: Path) -> None:
    """By the same daemon, whose latest repair was that of this segment."""
    pool = filled
    for position in (ROT, ROT + 1):
        rot(pool, INDEX, position=position)
        assert restore(pool, "--from", slave).startswith(REPAIRED)
        assert pool.path(INDEX).read_bytes() == content(pool, INDEX)
        assert damaged(pool) == {}
    assert pool.ask("status")["moves"]["repaired"] == 2


def test_a_segment_that_is_missing_again_is_restored_again(filled: PoolMount, slave: Path) -> None:
    """By the same daemon, too."""
    pool = filled
    for _ in range(2):
        pool.path(INDEX).unlink()
        assert restore(pool, "--from", slave) == "test: 1 segment restored (1.0 MiB)\n"
        assert pool.path(INDEX).read_bytes() == content(pool, INDEX)
    assert pool.ask("status")["moves"]["restored"] == 2


def test_the_damaged_file_stays_until_it_is_cleared(filled: PoolMount, slave: Path) -> None:
    pool = filled
    rot(pool, INDEX)
    with pool.path(INDEX).open("rb", buffering=0) as opened:
        restore(pool, "--from", slave)
        eventually(lambda: len(set_aside(pool)) == 1)
        name = pool.path(INDEX).name
        planned = pool.cli("scrub", "clear", pool.name, "--segment", name, "--dry-run")
        assert planned.out + planned.err == "test: 1 damaged file would be removed\n"
        assert len(set_aside(pool)) == 1
        assert pool.cli("scrub", "clear", pool.name, "--segment", pool.path(0).name).status == 4
        cleared = pool.cli("scrub", "clear", pool.name, "--json").json()
        assert [file["segment"] for file in cleared["removed"]] == [name]
        assert (cleared["cleared"], cleared["kept"], cleared["not_removed"]) == ([], [], [])
        assert set_aside(pool) == []
        assert os.pread(opened.fileno(), MIB, 0) == rotten(pool, INDEX)
    eventually(lambda: files_aside(pool) == [])
    assert pool.path(INDEX).read_bytes() == content(pool, INDEX)
    eventually(lambda: pool.log_since_start().count("event=set_aside_cleared ") == 1)


def test_a_damaged_file_that_was_deleted_on_its_disk_can_be_cleared(filled: PoolMount, slave: Path) -> None:
    pool = filled
    rot(pool, INDEX)
    restore(pool, "--from", slave)
    eventually(lambda: len(set_aside(pool)) == 1)
    (aside,) = files_aside(pool)
    aside.unlink()
    cleared = pool.cli("scrub", "clear", pool.name)
    assert (cleared.status, cleared.out + cleared.err) == (0, "test: 1 damaged file removed\n")
    assert set_aside(pool) == []
    assert pool.path(INDEX).read_bytes() == content(pool, INDEX)


def test_the_damaged_file_goes_with_its_segment(filled: PoolMount, slave: Path) -> None:
    pool = filled
    rot(pool, 0)
    restore(pool, "--from", slave)
    eventually(lambda: len(files_aside(pool)) == 1)
    pool.path(0).unlink()
    eventually(lambda: files_aside(pool) == [])
    assert set_aside(pool) == []


def test_a_full_disk_does_not_keep_a_repaired_segment(
    disk_farm: DiskFarm, make_pool: Callable[..., PoolMount], workdir: Path
) -> None:
    """There is no place to set its damaged file aside, and the broker removes the segment to reclaim space."""
    pool = make_pool(disks=[disk_farm.add("ext4", 64 * MIB).path for _ in range(2)])
    pool.start()
    scrubs.fill(pool, range(COUNT))
    await_checksums(pool, COUNT - NEWEST)
    slave = repairs.make_slave(pool, workdir / "slave", range(COUNT))
    rot(pool, 0)
    former = backing(pool, 0)
    fill_completely(former.parent)
    restore(pool, "--from", slave)
    eventually(lambda: "event=source_not_removed" in pool.log_since_start())
    assert former.read_bytes() == rotten(pool, 0)
    assert pool.path(0).read_bytes() == content(pool, 0)
    pool.path(0).unlink()
    assert (files_of(pool, 0), files_aside(pool)) == ([], [])


def test_each_kind_is_repaired_and_gaps_are_filled(filled: PoolMount, slave: Path) -> None:
    pool = filled
    size = pool.segment_size
    born = records_of(content(pool, 1), size)[7].position + 45
    scrubs.flip(backing(pool, 1), born)
    broken = records_of(content(pool, 2), 2 * size)[3].position + 100
    scrubs.flip(backing(pool, 2), broken)
    os.removexattr(backing(pool, 2), layout.XATTR_CHECKSUM)  # nothing tells since when
    rot(pool, INDEX)
    assert {one["kind"] for one in damaged(pool).values()} == {"header-or-padding", "written-broken", "rotted"}
    pool.path(3).unlink()
    answer = json.loads(restore(pool, "--from", slave, "--json"))
    names = {index: pool.path(index).name for index in range(COUNT)}
    assert [one["segment"] for one in answer["restored"]] == [names[3]]
    assert {one["segment"]: one["kind"] for one in answer["repaired"]} == {
        names[1]: "header-or-padding",
        names[2]: "written-broken",
        names[INDEX]: "rotted",
    }
    assert (answer["missing"], answer["damaged"]) == ([], [])
    for index in range(COUNT):
        assert pool.path(index).read_bytes() == content(pool, index), index
    assert damaged(pool) == {}
    assert scrub(pool, "--messages") == {}


def write_anew(pool: PoolMount, index: int, data: bytes) -> None:
    """Other content for a segment, and its checksum, of which the daemon knows: one that is removed from the file
    before would be computed anew."""
    checksums.write(pool.path(index), data, checksums.LONG_AGO_NS - 1)
    eventually(lambda: checksums.is_valid(backing(pool, index)))
    await_checksums(pool, COUNT - NEWEST)


def seal_early(pool: PoolMount, index: int) -> bytes:
    """Write a segment anew that ends with zeros after some records; its content."""
    early = bytearray(content(pool, index))
    end = records_of(bytes(early), index * MIB)[50].position
    early[end:] = bytes(MIB - end)
    write_anew(pool, index, bytes(early))
    return bytes(early)


def test_a_segment_that_was_sealed_early_is_repaired(filled: PoolMount, slave: Path) -> None:
    """The copy has no blank record either; the checksum is the proof."""
    pool = filled
    early = seal_early(pool, INDEX)
    (slave / pool.path(INDEX).name).write_bytes(early)
    rot(pool, INDEX)
    assert restore(pool, "--from", slave, "--dry-run") == "test: 1 segment would be repaired (1.0 MiB)\n"
    assert restore(pool, "--from", slave).startswith(REPAIRED)
    assert pool.path(INDEX).read_bytes() == early
    assert damaged(pool) == {}


@pytest.mark.parametrize("is_rot_before_the_end", [True, False])
def test_without_a_checksum_the_zeros_at_the_end_have_to_be_the_same(
    filled: PoolMount, slave: Path, is_rot_before_the_end: bool
) -> None:
    """Zeros where the segment is damaged may be what a slave has not written yet."""
    pool = filled
    early = seal_early(pool, INDEX)
    (slave / pool.path(INDEX).name).write_bytes(early)
    scrubs.flip(backing(pool, INDEX), repairs.ROT if is_rot_before_the_end else MIB - 1)
    os.removexattr(backing(pool, INDEX), layout.XATTR_CHECKSUM)
    before = backing(pool, INDEX).read_bytes()
    assert [one["kind"] for one in scrub(pool).values()] == ["written-broken"]
    status, expected = (0, early) if is_rot_before_the_end else (1, before)
    for options in (["--dry-run"], []):
        out = restore(pool, "--from", slave, *options, status=status)
        assert ("nothing shows that the segment ended there" in out) == (status == 1)
    assert pool.path(INDEX).read_bytes() == expected


def test_a_segment_that_was_written_broken_and_rots_is_repaired(filled: PoolMount, slave: Path) -> None:
    """Its checksum is that of the broken content. A copy with another message damaged is refused."""
    pool = filled
    write_anew(pool, INDEX, rotten(pool, INDEX))
    assert [one["kind"] for one in scrub(pool, "--messages").values()] == ["written-broken"]
    rot(pool, INDEX, position=records_of(content(pool, INDEX), INDEX * MIB)[7].end - 150)
    assert [one["kind"] for one in damaged(pool).values()] == ["rotted"]
    pool.restart()  # the attribute says it, too
    eventually(lambda: damaged(pool))
    spoilt, whole = slave / pool.path(INDEX).name, content(pool, INDEX)
    spoil(spoilt, records_of(whole, INDEX * MIB)[20].end - 3)  # in its properties: the chain is right
    restore(pool, "--from", slave, status=1)
    spoilt.write_bytes(whole)
    assert restore(pool, "--from", slave).startswith(REPAIRED)
    assert pool.path(INDEX).read_bytes() == whole


def test_a_copy_of_broken_content_that_was_sealed_is_taken_with_a_warning(
    filled: PoolMount, slave: Path, workdir: Path
) -> None:
    """Only the later damage is known. The copy undoes that, and then the former damage can be repaired, too."""
    pool, name, sealed = filled, filled.path(INDEX).name, rotten(filled, INDEX)
    write_anew(pool, INDEX, sealed)
    backup = workdir / "backup"
    backup.mkdir()
    (backup / name).write_bytes(sealed)
    rot(pool, INDEX, position=records_of(content(pool, INDEX), INDEX * MIB)[7].end - 150)
    restore(pool, "--from", slave, status=1)  # nothing tells that its content is right
    out = restore(pool, "--from", backup, status=1)
    assert out.startswith(f"warning: {name}: the copy has what was sealed, and that was damaged already (log ")
    assert REPAIRED in out
    assert pool.path(INDEX).read_bytes() == sealed
    found = scrub(pool, "--messages")
    assert [(one["segment"], one["kind"]) for one in found.values()] == [(name, "written-broken")]
    assert restore(pool, "--from", slave).startswith(REPAIRED)
    assert pool.path(INDEX).read_bytes() == content(pool, INDEX)


def test_a_copy_with_the_checksum_needs_no_neighbour(filled: PoolMount, workdir: Path) -> None:
    """Nothing else shows whose segment it is."""
    pool = filled
    foreign = make_sealed(INDEX * MIB, MIB, store_ms=1_200_000_000_000)
    write_anew(pool, INDEX, foreign)
    backup = workdir / "backup"
    backup.mkdir()
    (backup / pool.path(INDEX).name).write_bytes(foreign)
    rot(pool, INDEX)
    assert restore(pool, "--from", backup).startswith(REPAIRED)
    assert pool.path(INDEX).read_bytes() == foreign


def test_one_segment_is_chosen(filled: PoolMount, slave: Path) -> None:
    pool = filled
    rot(pool, 1, INDEX)
    name = pool.path(INDEX).name
    out = restore(pool, "--from", slave, "--segment", pool.path(0).name, status=4)
    assert f"{pool.path(0).name}: is neither missing nor known to be damaged" in out
    assert restore(pool, "--from", slave, "--segment", name).startswith(REPAIRED)
    assert damaged(pool).keys() == {pool.path(1).name}


# --- refusals --------------------------------------------------------------------------------------------


def spoil(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize(
    ("position", "said"),
    [
        (repairs.ROT, "the checksum of the message is wrong"),
        (45, "its checksum is not the one that the segment had when it was sealed"),
    ],
    ids=["rotten", "header"],
)
def test_a_source_that_is_damaged_too_is_refused(filled: PoolMount, slave: Path, position: int, said: str) -> None:
    pool = filled
    rot(pool, INDEX)
    spoil(slave / pool.path(INDEX).name, position)
    before = damaged(pool)
    for options in (["--dry-run"], []):
        out = restore(pool, "--from", slave, *options, status=1)
        assert f"{pool.path(INDEX).name}: not taken from {slave}: " in out
        assert said in out
        assert f"still damaged: {pool.path(INDEX).name}; name other places with --from" in out
    assert damaged(pool) == before
    assert pool.path(INDEX).read_bytes() == rotten(pool, INDEX)
    assert files_aside(pool) == []


def test_a_place_without_a_whole_copy_is_refused(filled: PoolMount, slave: Path) -> None:
    pool = filled
    rot(pool, 1, INDEX)
    (slave / pool.path(1).name).unlink()
    os.truncate(slave / pool.path(INDEX).name, MIB - 1)
    answer = json.loads(restore(pool, "--from", slave, "--json", status=1))
    assert [one["segment"] for one in answer["damaged"]] == [pool.path(INDEX).name, pool.path(1).name]
    assert answer["repaired"] == []
    assert len(damaged(pool)) == 2


class Kinds:
    """Makes, under the name of a segment, what is no copy of it."""

    @staticmethod
    def short(path: Path) -> None:
        path.write_bytes(bytes(100))

    @staticmethod
    def fifo(path: Path) -> None:
        os.mkfifo(path)

    @staticmethod
    def directory(path: Path) -> None:
        path.mkdir()

    @staticmethod
    def dangling(path: Path) -> None:
        path.symlink_to("nowhere")

    @staticmethod
    def link(path: Path) -> None:
        (path.parent / "original").write_bytes(bytes(MIB))
        path.symlink_to("original")

    @staticmethod
    def socket(path: Path) -> None:
        os.mknod(path, stat.S_IFSOCK | 0o600)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Kinds.short, "has 100 bytes instead of 1,048,576"),
        (Kinds.fifo, "is not a regular file"),
        (Kinds.directory, "is a directory"),
        (Kinds.dangling, "is a symbolic link, which is not followed"),
        (Kinds.link, "is a symbolic link, which is not followed"),
        (Kinds.socket, "is not a regular file"),
    ],
    ids=["short", "fifo", "directory", "dangling", "link", "socket"],
)
def test_what_is_no_file_of_a_segment_is_refused_with_the_reason(
    filled: PoolMount, slave: Path, workdir: Path, make: Callable[[Path], None], said: str
) -> None:
    pool, name = filled, filled.path(INDEX).name
    rot(pool, INDEX)
    (slave / name).rename(workdir / "right")
    make(slave / name)
    for options in (["--dry-run"], []):
        out = restore(pool, "--from", slave, *options, status=1)
        assert f"{name}: not taken from {slave}: {said}" in " ".join(out.split())
    (answer,) = json.loads(restore(pool, "--from", slave, "--json", status=1))["damaged"]
    assert answer["failures"][0].startswith(f"{slave}: {said}")
    backup = workdir / "backup"
    backup.mkdir()
    (workdir / "right").rename(backup / name)
    restore(pool, "--from", slave, "--from", backup)
    assert pool.path(INDEX).read_bytes() == content(pool, INDEX)


def test_without_a_checksum_the_sound_parts_decide(filled: PoolMount, slave: Path) -> None:
    """The segment was written broken; a sound segment with other messages is not its copy."""
    pool, base = filled, INDEX * MIB
    records = records_of(content(pool, INDEX), base)
    scrubs.flip(backing(pool, INDEX), records[3].position + 100)
    os.removexattr(backing(pool, INDEX), layout.XATTR_CHECKSUM)
    assert [one["kind"] for one in scrub(pool).values()] == ["written-broken"]
    other = make_sealed(base, MIB, store_ms=1_700_000_000_999)
    (slave / pool.path(INDEX).name).write_bytes(other)
    out = restore(pool, "--from", slave, status=1)
    assert "differs from the segment outside of the known damage" in out
    assert damaged(pool).keys() == {pool.path(INDEX).name}


def touch(pool: PoolMount, index: int) -> None:
    pool.path(index).touch()


def copy_while_unmounted(pool: PoolMount, index: int) -> None:
    path = backing(pool, index)
    pool.stop()
    copy = path.with_name("copy")
    subprocess.run(["cp", "--archive", path, copy], check=True)
    copy.rename(path)
    pool.start()


@pytest.mark.parametrize("change", [touch, copy_while_unmounted])
@pytest.mark.parametrize("kind", ["rotted", "header-or-padding"])
def test_the_checksum_from_before_the_damage_decides_for_ever(
    filled: PoolMount, slave: Path, workdir: Path, change: Callable[[PoolMount, int], None], kind: str
) -> None:
    """Also if the damaged file has another mtime or inode since. A copy from after the damage is refused."""
    pool, position = filled, ROT
    if kind == "header-or-padding":
        position = records_of(content(pool, INDEX), INDEX * MIB)[7].end - 3
    rot(pool, INDEX, position=position)
    eventually(lambda: scrubs.has_verdict(pool, INDEX))
    change(pool, INDEX)
    # Other segments get their checksums meanwhile.
    touch(pool, 0)
    eventually(lambda: checksums.is_valid(backing(pool, 0)))
    # That from before the damage counts for the file as it is now.
    eventually(lambda: checksums.is_valid(backing(pool, INDEX)))
    after = checksums.recorded(backing(pool, INDEX))
    assert after is not None
    assert after.digest == xxhash.xxh3_128_digest(content(pool, INDEX))
    found = scrub(pool)
    assert [one["kind"] for one in found.values()] == [kind]
    later = repairs.make_slave(pool, workdir / "later", [INDEX])
    (later / pool.path(INDEX).name).write_bytes(rotten(pool, INDEX, position))
    restore(pool, "--from", later, status=1)
    assert pool.path(INDEX).read_bytes() == rotten(pool, INDEX, position)
    assert restore(pool, "--from", slave).startswith(REPAIRED)
    assert pool.path(INDEX).read_bytes() == content(pool, INDEX)


def test_content_is_accepted_as_it_is_by_a_new_time_after_the_clear(filled: PoolMount) -> None:
    """As docs/runbooks/damaged-segment.md has it. Before the clear, the checksum from before the damage is bound to
    the file again."""
    pool, path = filled, filled.path(INDEX)
    rot(pool, INDEX)
    by_hand = make_sealed(INDEX * MIB, MIB, store_ms=1_200_000_000_000)

    def clear() -> None:
        assert pool.cli("scrub", "clear", pool.name, "--segment", path.name).status == 0
        assert damaged(pool) == {}

    checksums.write(path, by_hand, checksums.LONG_AGO_NS - 1)
    clear()
    assert scrub(pool).keys() == {path.name}
    clear()
    before = path.stat()
    command = 'touch --date="$(stat --format=%y "$file") 1 second" "$file"'
    subprocess.run(["sh", "-c", command], check=True, env={**os.environ, "file": str(path)})
    assert path.stat().st_mtime_ns == before.st_mtime_ns + 1_000_000_000
    eventually(lambda: checksums.is_valid(backing(pool, INDEX)))
    found = checksums.recorded(backing(pool, INDEX))
    assert found is not None
    assert found.digest == xxhash.xxh3_128_digest(by_hand)
    assert scrub(pool) == {}


def test_what_a_move_could_not_read_is_repaired_with_the_rest(filled: PoolMount, slave: Path) -> None:
    """The segment has zeros there, and a message is damaged elsewhere."""
    pool = filled
    lost, records = backing(pool, INDEX), records_of(content(pool, INDEX), INDEX * MIB)
    begin = records[len(records) // 2].position // 4096 * 4096
    scrubs.damage(lost, begin, bytes(4096))
    scrubs.flip(lost, records[3].position + 100)
    os.setxattr(lost, layout.XATTR_UNREADABLE, json.dumps([[begin, begin + 4096]]).encode())
    os.removexattr(lost, layout.XATTR_CHECKSUM)
    assert [one["kind"] for one in scrub(pool).values()] == ["unreadable"]
    assert restore(pool, "--from", slave).startswith(REPAIRED)
    assert backing(pool, INDEX).read_bytes() == content(pool, INDEX)
    assert (damaged(pool), pool.ask("status")["unreadable"]) == ({}, [])


def test_what_no_copy_can_repair_is_named(make_pool: Callable[..., PoolMount], workdir: Path) -> None:
    """A disk that has lost writes, and a segment to which a broker may write."""
    pool = make_pool(2)
    pool.start()
    scrubs.fill(pool, range(6))
    await_checksums(pool, 6 - NEWEST)
    pool.stop()
    lost, newest = backing(pool, 1), backing(pool, 5)
    for path, kind in ((lost, Kind.WRITE_LOST), (newest, Kind.ROTTED)):
        os.setxattr(path, layout.XATTR_VERDICT, format_verdict(whole_verdict(kind, MIB, 1_800_000_000)))
    pool.start()
    slave = repairs.make_slave(pool, workdir / "slave", range(6))
    for options in (["--dry-run"], []):
        answer = json.loads(restore(pool, "--from", slave, "--json", *options, status=1))
        reasons = {one["segment"]: one["failures"] for one in answer["damaged"]}
        assert reasons.keys() == {lost.name, newest.name}
        assert "memory may show what its disk lacks" in reasons[lost.name][0]
        assert "it is among the newest 3 of the log" in reasons[newest.name][0]
        assert answer["repaired"] == []
    out = restore(pool, "--from", slave, status=1)
    assert f"{lost.name}: cannot be repaired by a copy: memory may show" in out
    assert "name other places" not in out
    assert len(damaged(pool)) == 2


@pytest.mark.parametrize("version", [1, 2])
def test_a_verdict_that_cannot_be_read_stays_one(filled: PoolMount, slave: Path, version: int) -> None:
    """It is damaged, or of a newer version: over a restart, the segment does not become a sound one."""
    pool, name = filled, filled.path(INDEX).name
    rot(pool, INDEX)
    eventually(lambda: scrubs.has_verdict(pool, INDEX))
    raw = bytearray(os.getxattr(backing(pool, INDEX), layout.XATTR_VERDICT))
    raw[0 if version == 2 else -1] ^= 3
    os.setxattr(backing(pool, INDEX), layout.XATTR_VERDICT, bytes(raw))
    pool.restart()
    eventually(lambda: damaged(pool).keys() == {name})
    assert (damaged(pool)[name]["kind"], damaged(pool)[name]["located"]) == ("unknown", False)
    assert pool.cli("scrub", "status", pool.name).status == 1
    assert os.getxattr(backing(pool, INDEX), layout.XATTR_VERDICT) == raw
    pool.require_logged("event=record_illegible ")
    (finding,) = [one for one in pool.ask("status")["findings"] if one["code"] == "damaged-segment"]
    assert "a record of damage that cannot be read" in finding["message"]
    right = os.getxattr(backing(pool, INDEX), layout.XATTR_CHECKSUM)
    os.removexattr(backing(pool, INDEX), layout.XATTR_CHECKSUM)
    assert "it has no checksum" in restore(pool, "--from", slave, status=1)
    os.setxattr(backing(pool, INDEX), layout.XATTR_CHECKSUM, right)
    restore(pool, "--from", slave)
    assert pool.path(INDEX).read_bytes() == content(pool, INDEX)


def test_no_copy_goes_to_the_disk_of_the_damaged_file(make_pool: Callable[..., PoolMount], workdir: Path) -> None:
    pool = make_pool(1)
    pool.start()
    scrubs.fill(pool, range(6))
    await_checksums(pool, 6 - NEWEST)
    slave = repairs.make_slave(pool, workdir / "slave", range(6))
    rot(pool, 1)
    for options in (["--dry-run"], []):
        out = restore(pool, "--from", slave, *options, status=1)
        assert "no other disk takes it below its `force` threshold; free space, or add a disk" in out
    assert damaged(pool).keys() == {pool.path(1).name}
    assert pool.path(1).read_bytes() == rotten(pool, 1)
