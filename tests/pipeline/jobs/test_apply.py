"""Rebuilt directories put in the place of a store's own: at no moment is there less than one whole directory."""

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.rebuilding import read_files
from support.records import make_record
from support.settled_logs import apply_rebuilt
from support.written_logs import WrittenLog, write_log

from commitlogfs.pipeline.jobs import apply
from commitlogfs.pipeline.jobs import rename_exchange as exchanging
from commitlogfs.pipeline.jobs.apply import ApplyRefusedError, make_manifest, write_manifest
from commitlogfs.pipeline.jobs.rename_exchange import exchange, mount_points
from commitlogfs.pipeline.log.errors import LocationError
from commitlogfs.pipeline.log.locations import absolute_places
from commitlogfs.pipeline.log.segments import list_segments

SEGMENT = 4096
PARTS = ("consumequeue", "index")


class Store:
    def __init__(self, directory: Path, parts: tuple[str, ...] = PARTS) -> None:
        self.root, self.output = directory / "store", directory / "rebuilt"
        self.log: WrittenLog = write_log(self.root / "commitlog", SEGMENT, [make_record] * 5)
        for part in parts:
            _fill(self.root / part, "old")
        for part in PARTS:
            _fill(self.output / part, "new")
        listing = list_segments(str(self.log.directory))
        write_manifest(self.output, make_manifest(str(self.log.directory), listing, self.log.end))

    def content(self, part: str) -> str:
        (data,) = read_files(self.root / part).values()
        return data.decode()

    def kept(self) -> dict[str, str]:
        """Part -> its text; of several, in the order of their names."""
        kept: dict[str, list[str]] = {}
        for path in sorted(self.root.glob("*.bak-*")):
            (data,) = read_files(path).values()
            kept.setdefault(path.name.partition(".bak-")[0], []).append(data.decode())
        return {part: " ".join(texts) for part, texts in kept.items()}


def _fill(directory: Path, text: str) -> None:
    (directory / "some").mkdir(parents=True)
    (directory / "some/file").write_text(text)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def test_two_directories_change_places(tmp_path: Path) -> None:
    _fill(tmp_path / "a", "1")
    _fill(tmp_path / "b", "2")
    exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a/some/file").read_text() == "2"
    with pytest.raises(FileNotFoundError):
        exchange(tmp_path / "a", tmp_path / "c")


def test_the_old_directories_are_kept(store: Store) -> None:
    result = apply_rebuilt(store.output, store.root)
    assert [store.content(part) for part in PARTS] == ["new", "new"]
    assert store.kept() == {"consumequeue": "old", "index": "old"}
    assert result.installed == tuple(store.root / part for part in PARTS)
    assert set(result.kept) == set(store.root.glob("*.bak-*"))
    assert result.warnings == ()
    assert not store.output.exists()
    assert sorted(path.name.partition(".bak")[0] for path in store.root.iterdir()) == sorted(
        [*PARTS, *PARTS, "commitlog", "lock"]
    )


def test_an_emptied_store_gets_what_it_lacks(tmp_path: Path) -> None:
    store = Store(tmp_path, parts=())
    assert apply_rebuilt(store.output, store.root).kept == ()
    assert [store.content(part) for part in PARTS] == ["new", "new"]


def test_a_running_broker_is_told_by_its_lock(store: Store) -> None:
    lock = store.root / "lock"
    holder = (
        "import fcntl, sys\n"
        f"file = open({str(lock)!r}, 'a+b')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(ApplyRefusedError, match="a broker is running on this store"):
            apply_rebuilt(store.output, store.root)
        process.communicate()
    assert [store.content(part) for part in PARTS] == ["old", "old"]
    apply_rebuilt(store.output, store.root)


def test_no_broker_starts_meanwhile(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(source: Path, target: Path) -> None:
        code = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'a+b'), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)"
        command = [sys.executable, "-c", code, str(store.root / "lock")]
        done = subprocess.run(command, capture_output=True, check=False)
        assert b"BlockingIOError" in done.stderr
        source.rename(target)

    monkeypatch.setattr(apply, "_move", look)
    apply_rebuilt(store.output, store.root)


def test_a_log_that_has_grown_since_is_refused(store: Store) -> None:
    store.log.append(make_record)
    with pytest.raises(ApplyRefusedError, match="the log has grown since"):
        apply_rebuilt(store.output, store.root)
    assert [store.content(part) for part in PARTS] == ["old", "old"]


def test_queues_with_misplaced_entries_are_installed_on_demand_only(store: Store) -> None:
    listing = list_segments(str(store.log.directory))
    manifest = make_manifest(str(store.log.directory), listing, store.log.end)
    write_manifest(store.output, replace(manifest, misplaced=1234))
    with pytest.raises(ApplyRefusedError, match=r"1,234 entries are in wrong positions.*--topic-start") as caught:
        apply_rebuilt(store.output, store.root)
    assert "\n" not in str(caught.value)
    assert [store.content(part) for part in PARTS] == ["old", "old"]
    assert not (store.root / "rebuild-apply.json").exists()
    apply_rebuilt(store.output, store.root, accept_misplaced=True)
    assert [store.content(part) for part in PARTS] == ["new", "new"]


def test_what_is_no_output_is_refused(store: Store, tmp_path: Path) -> None:
    (store.output / "rebuild.json").unlink()
    with pytest.raises(ApplyRefusedError, match=r"is not a complete output of a rebuild \(rebuild.json"):
        apply_rebuilt(store.output, store.root)
    with pytest.raises(ApplyRefusedError, match="name the broker's storePathRootDir"):
        apply_rebuilt(store.output, tmp_path / "absent")


def test_another_filesystem_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = Path.stat

    def elsewhere(path: Path, **options: bool) -> os.stat_result:
        found = stat(path, **options)
        if path == store.output:
            found = os.stat_result([*found[:2], found.st_dev + 1, *found[3:]])
        return found

    monkeypatch.setattr(Path, "stat", elsewhere)
    with pytest.raises(ApplyRefusedError, match="on another filesystem"):
        apply_rebuilt(store.output, store.root)


class Crash(BaseException):
    pass


def _crash_at(monkeypatch: pytest.MonkeyPatch, step: int, *, after: bool) -> None:
    """The process ends at the step-th change of a name, before it or right after it."""
    count = iter(range(100))

    def crashing(change: Callable[[Path, Path], object]) -> Callable[[Path, Path], None]:
        def run(source: Path, target: Path) -> None:
            crashes = next(count) == step
            if crashes and not after:
                raise Crash
            change(source, target)
            if crashes:
                raise Crash

        return run

    monkeypatch.setattr(apply, "exchange", crashing(exchange))
    monkeypatch.setattr(apply, "_move", crashing(lambda source, target: source.rename(target)))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", range(4))
def test_a_crash_anywhere_leaves_whole_directories_and_a_way_on(
    store: Store, monkeypatch: pytest.MonkeyPatch, step: int, after: bool
) -> None:
    with monkeypatch.context() as patched:
        _crash_at(patched, step, after=after)
        with pytest.raises(Crash):
            apply_rebuilt(store.output, store.root)
    assert all(store.content(part) in ("old", "new") for part in PARTS)
    assert json.loads((store.root / "rebuild-apply.json").read_text())["output"] == str(store.output)
    with pytest.raises(ApplyRefusedError, match=r"an earlier apply of .*/rebuilt is incomplete"):
        apply_rebuilt(store.root.parent / "other", store.root)
    apply_rebuilt(store.output, store.root)
    assert [store.content(part) for part in PARTS] == ["new", "new"]
    assert store.kept() == {"consumequeue": "old", "index": "old"}
    assert not (store.root / "rebuild-apply.json").exists()


def _crash(store: Store, monkeypatch: pytest.MonkeyPatch, step: int, *, after: bool) -> None:
    with monkeypatch.context() as patched:
        _crash_at(patched, step, after=after)
        with pytest.raises(Crash):
            apply_rebuilt(store.output, store.root)


@pytest.mark.parametrize("step", range(3))
@pytest.mark.parametrize("parts", [(), PARTS])
def test_directories_that_a_broker_made_after_a_crash_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, parts: tuple[str, ...]
) -> None:
    store = Store(tmp_path, parts)
    _crash(store, monkeypatch, step if parts else min(step, 1), after=False)
    for part in PARTS:
        if (store.root / part).exists():
            (store.root / part).rename(tmp_path / f"gone-{part}")
        _fill(store.root / part, "broker's")
    inside = {part: read_files(store.output / part) for part in PARTS}
    news = [part for part in PARTS if inside[part].get("some/file") == b"new"]
    result = apply_rebuilt(store.output, store.root)
    assert {part: store.content(part) for part in news} == dict.fromkeys(news, "new")
    texts = " ".join(store.kept().values()) + " ".join(store.content(part) for part in PARTS)
    assert texts.count("broker's") == len(PARTS)
    assert set(result.kept) == set(store.root.glob("*.bak-*"))
    assert not store.output.exists()
    assert not (store.root / "rebuild-apply.json").exists()


def test_what_cannot_be_known_is_kept_when_the_log_has_grown(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    _crash(store, monkeypatch, 0, after=True)  # the consume queues are exchanged, the old ones not yet moved
    shutil.rmtree(store.root / "consumequeue")
    _fill(store.root / "consumequeue", "broker's")
    store.log.append(make_record)
    apply_rebuilt(store.output, store.root)
    assert [store.content(part) for part in PARTS] == ["broker's", "old"]
    assert store.kept() == {"consumequeue": "old"}


@pytest.mark.parametrize("begun", [False, True])
def test_killed_while_the_output_is_removed_the_same_call_ends_it(
    store: Store, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    def killed(directory: Path) -> None:
        if begun:
            (directory / "rebuild.json").unlink()
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(apply.shutil, "rmtree", killed)
        with pytest.raises(Crash):
            apply_rebuilt(store.output, store.root)
    result = apply_rebuilt(store.output, store.root)
    assert result.installed == tuple(store.root / part for part in PARTS)
    assert store.kept() == {"consumequeue": "old", "index": "old"}
    assert sorted(path.name for path in store.root.parent.iterdir()) == ["store"]
    assert not (store.root / "rebuild-apply.json").exists()


def test_an_output_that_is_gone_names_the_journal(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    _crash(store, monkeypatch, 0, after=False)
    shutil.rmtree(store.output)
    with pytest.raises(ApplyRefusedError, match=r"rebuilt: does not exist.* remove .*/store/rebuild-apply.json"):
        apply_rebuilt(store.output, store.root)


def test_the_output_of_another_log_is_refused(store: Store, tmp_path: Path) -> None:
    other = Store(tmp_path / "other")
    other.log.write_at(0, make_record(0, body=b"hallo"))
    with pytest.raises(
        ApplyRefusedError, match=r"was made from .*, not from the log in .*other/store/commitlog.*segment 0{20}"
    ):
        apply_rebuilt(store.output, other.root)
    assert not (other.root / "rebuild-apply.json").exists()
    with pytest.raises(ApplyRefusedError, match=r"was made from .*, not from the log in"):
        apply_rebuilt(
            store.output, other.root, own_log=str(other.log.directory), given_log=str(store.log.directory)
        )


def test_another_end_of_the_same_length_is_another_log(store: Store) -> None:
    """The broker cut its log back and stored as many messages again."""
    last = store.log.offsets[-1]
    store.log.write_at(last, make_record(last, body=b"hallo"))
    with pytest.raises(ApplyRefusedError, match=rf"segment 0{{20}} differs at log offset {last}"):
        apply_rebuilt(store.output, store.root)
    assert [store.content(part) for part in PARTS] == ["old", "old"]


def test_a_result_without_identity_is_refused(store: Store) -> None:
    manifest = json.loads((store.output / "rebuild.json").read_text())
    del manifest["identity"]
    (store.output / "rebuild.json").write_text(json.dumps(manifest))
    with pytest.raises(ApplyRefusedError, match=r"is not a complete output of a rebuild .*identity.*rebuild again"):
        apply_rebuilt(store.output, store.root)


def test_a_store_whose_own_log_cannot_be_read_is_not_taken_for_one_without(store: Store, tmp_path: Path) -> None:
    """Nor does the log that was read stand for it."""
    other = Store(tmp_path / "other")
    shutil.rmtree(other.log.directory)
    write_log(other.log.directory, 3 * SEGMENT, [make_record] * 5)
    with pytest.raises(LocationError, match="does not fit the segment size 4096"):
        apply_rebuilt(store.output, other.root, given_log=str(store.log.directory))
    shutil.rmtree(other.log.directory)
    other.log.directory.touch()
    with pytest.raises(LocationError, match="Not a directory"):
        apply_rebuilt(store.output, other.root, given_log=str(store.log.directory))
    assert [other.content(part) for part in PARTS] == ["old", "old"]


def test_a_log_elsewhere_is_found_where_it_is_said_to_be(store: Store, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    store.log.directory.rename(moved)
    with pytest.raises(ApplyRefusedError, match=r"commitlog: holds no segments, .*name the log"):
        apply_rebuilt(store.output, store.root)
    apply_rebuilt(store.output, store.root, given_log=f"{tmp_path / 'absent'}, {moved}".partition(", ")[2])
    assert [store.content(part) for part in PARTS] == ["new", "new"]


def test_a_log_whose_old_segments_were_cleaned_is_still_the_same(tmp_path: Path) -> None:
    store = Store(tmp_path)
    while store.log.end < 4 * SEGMENT:
        store.log.append(make_record)
    listing = list_segments(str(store.log.directory))
    write_manifest(store.output, make_manifest(str(store.log.directory), listing, store.log.end))
    for number in range(3):
        store.log.segment_at(number * SEGMENT).unlink()
    apply_rebuilt(store.output, store.root)
    assert [store.content(part) for part in PARTS] == ["new", "new"]


def test_a_part_on_a_disk_of_its_own_is_refused_before_anything_is_begun(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = Path.stat

    def elsewhere(path: Path, **options: bool) -> os.stat_result:
        found = stat(path, **options)
        if path == store.root / "index":
            found = os.stat_result([*found[:2], found.st_dev + 1, *found[3:]])
        return found

    monkeypatch.setattr(Path, "stat", elsewhere)
    with pytest.raises(ApplyRefusedError, match=r"store/index: is on another filesystem"):
        apply_rebuilt(store.output, store.root)
    assert not (store.root / "rebuild-apply.json").exists()


def test_a_mount_point_is_refused_before_anything_is_begun(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply, "mount_points", lambda: {str(store.root / "index")})
    with pytest.raises(ApplyRefusedError, match=r"store/index: is a mount point"):
        apply_rebuilt(store.output, store.root)
    assert [store.content(part) for part in PARTS] == ["old", "old"]
    assert not (store.root / "rebuild-apply.json").exists()


def test_mount_points_are_listed_as_they_are_spelled() -> None:
    assert {"/", "/proc"} <= mount_points()


@pytest.mark.parametrize("where", ["probe", "first"])
def test_a_filesystem_that_cannot_exchange_is_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def refuse(one: Path, other: Path) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(one), None, str(other))

    module = exchanging if where == "probe" else apply
    monkeypatch.setattr(module, "exchange", refuse)
    with pytest.raises(ApplyRefusedError, match="Invalid argument"):
        apply_rebuilt(store.output, store.root)
    assert [store.content(part) for part in PARTS] == ["old", "old"]
    assert sorted(path.name for path in store.root.iterdir()) == ["commitlog", "consumequeue", "index", "lock"]
    assert store.output.is_dir()


@pytest.mark.parametrize(
    ("log", "places"),
    [
        ("/a, /b", "/a,/b"),
        ("file:/x", "file:/x"),
        ("file:///x/y,/b", "file:///x/y,/b"),
        ("s3://bucket/log", "s3://bucket/log"),
    ],
)
def test_places_are_made_absolute_one_by_one(log: str, places: str) -> None:
    assert absolute_places(log) == places


def test_a_relative_place_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute_places("a, b") == f"{tmp_path}/a,{tmp_path}/b"


def test_what_a_broker_has_gone_on_with_after_a_crash_stays(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        _crash_at(patched, 1, after=True)  # the consume queues are in, the index is not
        with pytest.raises(Crash):
            apply_rebuilt(store.output, store.root)
    store.log.append(make_record)
    result = apply_rebuilt(store.output, store.root)
    assert [store.content(part) for part in PARTS] == ["new", "old"]
    assert store.kept() == {"consumequeue": "old"}
    assert [warning.partition(": ")[2] for warning in result.warnings] == [
        "a broker has run since an earlier apply was interrupted; index were not replaced; rebuild and apply again"
    ]


def test_another_end_of_the_log_after_a_crash_is_not_what_was_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker cut its log back and stored as many messages again, between a crash and the next call."""
    with monkeypatch.context() as patched:
        _crash_at(patched, 0, after=True)
        with pytest.raises(Crash):
            apply_rebuilt(store.output, store.root)
    last = store.log.offsets[-1]
    store.log.write_at(last, make_record(last, body=b"hallo"))
    result = apply_rebuilt(store.output, store.root)
    assert [store.content(part) for part in PARTS] == ["new", "old"]
    assert result.warnings[0].endswith("index were not replaced; rebuild and apply again")


def test_an_unclean_stop_is_reported(store: Store) -> None:
    (store.root / "abort").touch()
    (warning,) = apply_rebuilt(store.output, store.root).warnings
    assert "it removes all index files newer than its checkpoint" in warning


@pytest.mark.root
def test_the_new_directories_belong_to_the_owner_of_the_store(store: Store) -> None:
    os.chown(store.root, 1234, 1235)
    apply_rebuilt(store.output, store.root)
    for path in store.root / "index", store.root / "index/some/file", store.root / "lock":
        assert (path.stat().st_uid, path.stat().st_gid) == (1234, 1235)


def test_the_lock_is_the_one_java_takes(store: Store) -> None:
    """F_SETLK of byte 0, length 1; a lock of any other byte is no broker's."""
    with (store.root / "lock").open("a+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 1, 1)
        apply_rebuilt(store.output, store.root)
