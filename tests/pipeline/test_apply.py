"""Rebuilt folders put in the place of a store's own: at no moment is there less than one whole folder."""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.rebuilding import read_files
from support.records import make_record
from support.written_logs import WrittenLog, write_log

from commitlogfs.pipeline.exchange import exchange
from commitlogfs.pipeline.jobs import apply
from commitlogfs.pipeline.jobs.apply import ApplyRefusedError, Manifest, apply_rebuilt, write_manifest

SEGMENT = 4096
PARTS = ("consumequeue", "index")


class Store:
    def __init__(self, folder: Path, parts: tuple[str, ...] = PARTS) -> None:
        self.root, self.output = folder / "store", folder / "rebuilt"
        self.log: WrittenLog = write_log(self.root / "commitlog", SEGMENT, [make_record] * 5)
        for part in parts:
            _fill(self.root / part, "old")
        for part in PARTS:
            _fill(self.output / part, "new")
        write_manifest(self.output, Manifest(str(self.log.folder), SEGMENT, self.log.end))

    def content(self, part: str) -> str:
        (data,) = read_files(self.root / part).values()
        return data.decode()

    def kept(self) -> dict[str, str]:
        return {
            path.name.partition(".bak-")[0]: next(iter(read_files(path).values())).decode()
            for path in self.root.glob("*.bak-*")
        }


def _fill(folder: Path, text: str) -> None:
    (folder / "some").mkdir(parents=True)
    (folder / "some/file").write_text(text)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def test_two_folders_change_places(tmp_path: Path) -> None:
    _fill(tmp_path / "a", "1")
    _fill(tmp_path / "b", "2")
    exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a/some/file").read_text() == "2"
    with pytest.raises(FileNotFoundError):
        exchange(tmp_path / "a", tmp_path / "c")


def test_the_old_folders_are_kept(store: Store) -> None:
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
    manifest = json.loads((store.output / "rebuild.json").read_text())
    write_manifest(store.output, Manifest(**(manifest | {"misplaced": 1234})))
    with pytest.raises(ApplyRefusedError, match=r"1,234 entries lie in wrong places.*--topic-start") as caught:
        apply_rebuilt(store.output, store.root)
    assert "\n" not in str(caught.value)
    assert [store.content(part) for part in PARTS] == ["old", "old"]
    assert not (store.root / "rebuild-apply.json").exists()
    apply_rebuilt(store.output, store.root, accept_misplaced=True)
    assert [store.content(part) for part in PARTS] == ["new", "new"]


def test_what_is_no_output_is_refused(store: Store, tmp_path: Path) -> None:
    (store.output / "rebuild.json").unlink()
    with pytest.raises(ApplyRefusedError, match=r"no whole output of a rebuild \(rebuild.json"):
        apply_rebuilt(store.output, store.root)
    with pytest.raises(ApplyRefusedError, match="is this the broker's storePathRootDir"):
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

    def crashing(change: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
        def run(source: Path, target: Path) -> None:
            crashes = next(count) == step
            if crashes and not after:
                raise Crash
            change(source, target)
            if crashes:
                raise Crash

        return run

    monkeypatch.setattr(apply, "exchange", crashing(exchange))
    monkeypatch.setattr(apply, "_move", crashing(lambda source, target: source.rename(target) and None))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", range(4))
def test_a_crash_anywhere_leaves_whole_folders_and_a_way_on(
    store: Store, monkeypatch: pytest.MonkeyPatch, step: int, after: bool
) -> None:
    with monkeypatch.context() as patched:
        _crash_at(patched, step, after=after)
        with pytest.raises(Crash):
            apply_rebuilt(store.output, store.root)
    assert all(store.content(part) in ("old", "new") for part in PARTS)
    assert json.loads((store.root / "rebuild-apply.json").read_text())["output"] == str(store.output)
    with pytest.raises(ApplyRefusedError, match=r"an earlier apply of .*/rebuilt did not come to its end"):
        apply_rebuilt(store.root.parent / "other", store.root)
    apply_rebuilt(store.output, store.root)
    assert [store.content(part) for part in PARTS] == ["new", "new"]
    assert store.kept() == {"consumequeue": "old", "index": "old"}
    assert not (store.root / "rebuild-apply.json").exists()


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
        "the broker has been running since an earlier apply was interrupted: index stayed as the broker has it"
    ]


def test_an_unclean_stop_is_told(store: Store) -> None:
    (store.root / "abort").touch()
    (warning,) = apply_rebuilt(store.output, store.root).warnings
    assert "it removes all index files newer than its checkpoint" in warning


@pytest.mark.root
def test_the_new_folders_belong_to_the_owner_of_the_store(store: Store) -> None:
    os.chown(store.root, 1234, 1235)
    apply_rebuilt(store.output, store.root)
    for path in store.root / "index", store.root / "index/some/file":
        assert (path.stat().st_uid, path.stat().st_gid) == (1234, 1235)


def test_the_lock_is_the_one_java_takes(store: Store) -> None:
    """F_SETLK of byte 0, length 1; a lock of any other byte is no broker's."""
    with (store.root / "lock").open("a+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 1, 1)
        apply_rebuilt(store.output, store.root)
