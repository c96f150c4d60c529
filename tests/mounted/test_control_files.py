"""The hidden directory `.commitlogfs`: the whole log as one file, the status document, the metrics."""

import errno
import json
import os
import random
import re
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.pools import MIB, PoolMount, segment_bytes
from support.records import make_record
from support.waiting import eventually

from commitlogfs.mount.metrics.table import METRICS, SERIES_PER_DISK, Type

pytestmark = pytest.mark.mounted

SEGMENTS = 5

DOCUMENT_KEYS = {
    "schema": int,
    "composed_at": float,
    "name": str,
    "pool": str,
    "mountpoint": str,
    "degraded": bool,
    "daemon": dict,
    "segments": dict,
    "placement": dict,
    "ingest_bytes_per_second": float,
    "written_to": int,
    "idle_since": float | None,
    "thresholds": dict,
    "statfs": dict,
    "disks": list,
    "rebalance": dict | None,
    "missing_disks": list,
    "members": dict,
    "findings": list,
}
NESTED_KEYS = {
    "daemon": {"pid", "version", "since", "passthrough"},
    "segments": {"count", "unsized", "first_offset", "last_offset", "size", "gaps", "accepted_gaps", "retired"},
    "members": {"generation", "lagging", "given_up"},
    "placement": {"policy", "fallback", "next_disk"},
    "thresholds": {"clean", "force", "full", "resume", "min_free_bytes"},
    "statfs": {"trigger", "blocks", "free", "used_percent"},
}
DISK_KEYS = {
    "id": str,
    "number": int,
    "path": str,
    "filesystem": str,
    "state": str,
    "eligible": bool,
    "refusal": str | None,
    "total_bytes": int,
    "available_bytes": int,
    "used_percent": float,
    "segments": int,
    "thresholds": dict,
    "next_threshold": str | None,
    "eta_seconds": float | int | None,
    "last_error": str,
    "cordon": dict | None,
}
REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def control(pool: PoolMount, name: str = "") -> Path:
    return pool.mountpoint / ".commitlogfs" / name


def content(index: int) -> bytes:
    return random.Random(index).randbytes(MIB)  # noqa: S311


@pytest.fixture(scope="module")
def filled(shared: PoolMount) -> PoolMount:
    """Five whole segments with different content, and one that is created but has no size yet."""
    for index in range(SEGMENTS):
        fd = os.open(shared.path(index), os.O_RDWR | os.O_CREAT, 0o644)
        os.ftruncate(fd, MIB)
        os.pwrite(fd, content(index), 0)
        os.close(fd)
    os.close(os.open(shared.path(SEGMENTS), os.O_RDWR | os.O_CREAT, 0o644))
    return shared


# --- log --------------------------------------------------------------------------------------------------


def test_any_read_of_the_log_equals_the_segments_one_after_the_other(filled: PoolMount) -> None:
    whole = b"".join(content(index) for index in range(SEGMENTS))
    rng = random.Random(7)  # noqa: S311
    places = [(0, 1), (MIB - 1, 2), (MIB, 1), (MIB - 5, MIB + 10), (0, SEGMENTS * MIB), (SEGMENTS * MIB - 1, 100)]
    places += [(rng.randrange(SEGMENTS * MIB), rng.randrange(1, 2 * MIB)) for _ in range(60)]
    fd = os.open(control(filled, "log"), os.O_RDONLY)
    try:
        assert os.fstat(fd).st_size == SEGMENTS * MIB
        for offset, length in places:
            assert os.pread(fd, length, offset) == whole[offset : offset + length], (offset, length)
        assert os.pread(fd, 1, SEGMENTS * MIB) == b""
        assert os.pread(fd, 1, 2**62) == b""
    finally:
        os.close(fd)
    assert control(filled, "log").read_bytes() == whole


def test_what_is_written_is_in_the_log_at_once_and_the_log_grows(filled: PoolMount) -> None:
    log = os.open(control(filled, "log"), os.O_RDONLY)
    fd = os.open(filled.path(2), os.O_RDWR)
    try:
        os.pwrite(fd, b"just now", 777)
        assert os.pread(log, 8, 2 * MIB + 777) == b"just now"
        os.pwrite(fd, content(2)[777:785], 777)
    finally:
        os.close(fd)
        os.close(log)


def test_over_a_gap_the_log_fails_and_shows_no_zeros(make_pool: Callable[..., PoolMount]) -> None:
    pool = make_pool(3)
    pool.start()
    pool.make_segments(range(7))
    pool.stop()
    pool.disks = [disk for index, disk in enumerate(pool.disks) if index != 1]  # segments 1 and 4 go
    pool.settings["on_missing"] = '"degraded"'
    pool.start()
    fd = os.open(control(pool, "log"), os.O_RDONLY)
    try:
        assert os.fstat(fd).st_size == 7 * MIB
        for offset in (MIB, 2 * MIB - 1, 4 * MIB + 5):
            with pytest.raises(OSError) as lost:  # noqa: PT011
                os.pread(fd, 1, offset)
            assert lost.value.errno == errno.EIO
        # Up to the gap, then the error; never beyond it as if nothing were missing.
        assert len(os.pread(fd, 100, MIB - 50)) == 50
        assert os.pread(fd, 4096, 2 * MIB) == segment_bytes(2, 4096)
        assert os.pread(fd, 4096, 6 * MIB) == segment_bytes(6, 4096)
    finally:
        os.close(fd)
    document = json.loads(control(pool, "status.json").read_bytes())
    assert document["degraded"] is True
    assert document["segments"]["gaps"] == [[MIB, 2 * MIB], [4 * MIB, 5 * MIB]]
    assert len(document["missing_disks"]) == 1


def test_a_log_that_does_not_begin_at_zero(make_pool: Callable[..., PoolMount]) -> None:
    pool = make_pool(2)
    pool.start()
    assert control(pool, "log").stat().st_size == 0
    assert control(pool, "log").read_bytes() == b""
    pool.make_segments(range(3, 5))
    fd = os.open(control(pool, "log"), os.O_RDONLY)
    try:
        assert os.fstat(fd).st_size == 5 * MIB
        with pytest.raises(OSError) as gone:  # noqa: PT011
            os.pread(fd, 10, 0)
        assert gone.value.errno == errno.EIO
        assert os.pread(fd, 4096, 4 * MIB) == segment_bytes(4, 4096)
        # An open log follows the removal of what it has shown.
        pool.path(3).unlink()
        with pytest.raises(OSError) as gone:  # noqa: PT011
            os.pread(fd, 10, 3 * MIB)
        assert gone.value.errno == errno.EIO
    finally:
        os.close(fd)


# --- the directory -------------------------------------------------------------------------------------------


def test_the_directory_is_found_but_not_listed(filled: PoolMount) -> None:
    assert ".commitlogfs" not in os.listdir(filled.mountpoint)
    assert control(filled).is_dir()
    assert sorted(os.listdir(control(filled))) == ["log", "metrics", "status.json"]
    modes = {name: oct(control(filled, name).stat().st_mode & 0o7777) for name in os.listdir(control(filled))}
    assert modes == {"log": "0o440", "metrics": "0o444", "status.json": "0o444"}


@pytest.mark.root
def test_the_log_is_not_for_strangers(filled: PoolMount) -> None:
    """Not even where the directory is open to them, as that of an older pool is."""
    filled.mountpoint.chmod(0o755)
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        try:
            os.open(control(filled, "log"), os.O_RDONLY)
        except PermissionError:
            os._exit(0 if control(filled, "status.json").read_bytes() else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# --- status.json ------------------------------------------------------------------------------------------


def document_of(pool: PoolMount) -> Any:
    return json.loads(control(pool, "status.json").read_bytes())


def test_many_opens_a_second_show_one_document(filled: PoolMount) -> None:
    seen = [document_of(filled)["composed_at"] for _ in range(300)]
    assert len(set(seen)) <= seen[-1] - seen[0] + 2
    assert seen == sorted(seen)


def test_the_status_file_is_at_most_a_second_old(filled: PoolMount) -> None:
    """Whenever it is read: until it has been composed anew twice, its age grows to a second again and again."""
    ages: dict[float, list[float]] = {}

    def is_composed_anew() -> bool:
        asked = time.time()
        composed_at = document_of(filled)["composed_at"]
        ages.setdefault(composed_at, []).append(asked - composed_at)
        return len(ages) > 2

    eventually(is_composed_anew)
    assert max(max(seen) for seen in ages.values()) <= 1.05


def test_a_command_shows_what_happened_before_it(filled: PoolMount) -> None:
    """However many commands and readers have asked a moment ago."""
    for index in range(20, 25):
        document_of(filled)
        filled.make_segments([index])
        assert filled.ask("status")["segments"]["count"] == SEGMENTS + 1
        filled.path(index).unlink()
        assert filled.ask("status")["segments"]["count"] == SEGMENTS


def test_the_status_document_follows_its_schema(filled: PoolMount) -> None:
    eventually(lambda: document_of(filled)["segments"]["retired"] == 0)  # of other tests
    document = document_of(filled)
    assert DOCUMENT_KEYS.keys() <= document.keys()
    for key, kind in DOCUMENT_KEYS.items():
        assert isinstance(document[key], kind | int if kind is float else kind), key
    for key, keys in NESTED_KEYS.items():
        assert keys <= document[key].keys(), key
    assert document["schema"] == 2
    assert document["segments"] == {
        "count": SEGMENTS,
        "unsized": 1,
        "first_offset": 0,
        "last_offset": (SEGMENTS - 1) * MIB,
        "size": MIB,
        "gaps": [],
        "accepted_gaps": 0,
        "retired": 0,
    }
    assert filled.daemon is not None
    assert document["daemon"]["pid"] == filled.daemon.pid
    assert document["daemon"]["version"] == metadata.version("commitlogfs")
    for disk in document["disks"]:
        assert DISK_KEYS.keys() <= disk.keys()
        for key, kind in DISK_KEYS.items():
            assert isinstance(disk[key], kind | int if kind is float else kind), key
    assert [disk["path"] for disk in document["disks"]] == [str(disk) for disk in filled.disks]
    assert sum(disk["segments"] for disk in document["disks"]) == SEGMENTS


def test_the_documentation_names_every_key_of_the_document(filled: PoolMount) -> None:
    document = json.loads(control(filled, "status.json").read_bytes())
    (section,) = [
        part for part in (REFERENCE / "status.md").read_text().split("\n## ") if part.startswith("Status document")
    ]
    named = set(re.findall(r"`(\w+)`", section))
    assert document.keys() <= named
    for part in (document["daemon"], document["segments"], document["placement"], document["disks"][0]):
        assert part.keys() <= named


def test_the_command_gives_the_same_document(filled: PoolMount) -> None:
    def compare() -> bool:
        by_file = json.loads(control(filled, "status.json").read_bytes())
        by_command = filled.status()
        assert by_file.keys() == by_command.keys()
        assert by_file["segments"] == by_command["segments"]
        return True

    eventually(compare)  # the file may be a second old, and show segments that another test has removed meanwhile


def test_a_document_read_in_parts_fits_together(filled: PoolMount) -> None:
    with control(filled, "status.json").open("rb", buffering=0) as file:
        first = file.read(100)
        filled.make_segments([20])
        rest = file.read()
    try:
        assert json.loads(first + rest)["segments"]["count"] == SEGMENTS
        eventually(lambda: document_of(filled)["segments"]["count"] == SEGMENTS + 1)
    finally:
        filled.path(20).unlink()


# --- metrics ----------------------------------------------------------------------------------------------


WITHOUT_EVENTS = {
    *("alert", "damaged_segments", "disk_drain_segments", "disk_io_errors", "disk_operation_seconds"),
    *("disk_peers_operation_seconds", "disk_threshold_eta_seconds", "fuse_ops", "oldest_message_timestamp_seconds"),
    *("passthrough_fallbacks", "placement_skips", "retention_force_eta_seconds", "retention_pressure_eta_seconds"),
    *("scrub_remaining_bytes", "scrub_unread_segments", "log_end_offset_bytes", "store_root_used_ratio"),
    *("disk_read_bytes", "disk_written_bytes", "disk_busy_seconds", "disk_segment_removal_seconds"),
}
"""Metrics without a series until something has happened, or on a filesystem without a block device."""

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(pool: PoolMount) -> Samples:
    families = text_string_to_metric_families(control(pool, "metrics").read_text())
    found = {}
    for family in families:
        for sample in family.samples:
            if not sample.name.endswith("_bucket"):
                found[(sample.name, frozenset(sample.labels.items()))] = sample.value
    return found


def changed(before: Samples, after: Samples, key: tuple[str, frozenset[tuple[str, str]]]) -> Samples | None:
    """`after`, once it shows another value."""
    return after if after.get(key, 0) != before.get(key, 0) else None


def test_the_metrics_parse_and_count(filled: PoolMount) -> None:
    before = samples(filled)
    assert all(name.startswith("commitlogfs_") for name, _ in before)
    pool = ("pool", "test")
    per_disk = [
        before[("commitlogfs_disk_segments", frozenset({pool, ("disk", str(disk))}))] for disk in filled.disks
    ]
    assert sum(per_disk) == SEGMENTS + 1
    for disk in filled.disks:
        labels = frozenset({pool, ("disk", str(disk))})
        assert before[("commitlogfs_disk_state", labels | {("state", "rw")})] == 1
        size, used = (before[(f"commitlogfs_disk_{what}_bytes", labels)] for what in ("size", "used"))
        assert 0 < used < size
    assert before[("commitlogfs_log_gaps", frozenset({pool}))] == 0
    assert before[("commitlogfs_last_offset_bytes", frozenset({pool}))] == SEGMENTS * MIB

    filled.make_segments([20])
    filled.path(20).unlink()
    with pytest.raises(OSError):  # noqa: PT011
        (filled.mountpoint / "no-segment").touch()
    created = ("commitlogfs_segment_creates_total", frozenset({pool, ("result", "ok")}))
    removed = ("commitlogfs_segments_removed_total", frozenset({pool, ("reason", "unlink")}))
    refused = ("commitlogfs_fuse_ops_total", frozenset({pool, ("op", "create"), ("errno", "EINVAL")}))
    after = eventually(lambda: changed(before, samples(filled), refused))
    assert after[created] == before.get(created, 0) + 1
    assert after[removed] == before.get(removed, 0) + 1
    assert after[refused] == before.get(refused, 0) + 1


def test_the_documentation_names_every_metric(filled: PoolMount) -> None:
    text = (REFERENCE / "metrics.md").read_text()
    for family in text_string_to_metric_families(control(filled, "metrics").read_text()):
        assert family.name.removeprefix("commitlogfs_") in text.replace("_total", ""), family.name


def test_the_metrics_are_those_of_the_table(filled: PoolMount) -> None:
    exposed = list(text_string_to_metric_families(control(filled, "metrics").read_text()))
    rows = {row.full_name.removesuffix("_total").removesuffix("_info"): row for row in METRICS}
    names = {family.name.removesuffix("_info") for family in exposed}
    assert names <= set(rows)
    assert set(rows) - names <= {f"commitlogfs_{name}" for name in WITHOUT_EVENTS}
    for family in exposed:
        row = rows[family.name.removesuffix("_info")]
        assert family.documentation == row.text
        assert family.type in {row.type.value, "gauge" if row.type is Type.INFO else ""}
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(row.all_labels), sample


def test_a_disk_has_few_series(filled: PoolMount) -> None:
    lines = control(filled, "metrics").read_text().splitlines()
    for disk in filled.disks:
        series = [line for line in lines if f'disk="{disk}"' in line]
        assert 20 < len(series) <= SERIES_PER_DISK


def write(path: Path, content: bytes) -> None:
    with path.open("r+b") as file:
        file.write(content)


def test_the_oldest_message_has_its_store_time(make_pool: Callable[..., PoolMount]) -> None:
    pool = make_pool(2)
    pool.start()
    pool.make_segments([0, 1], fill=False)
    assert pool.status()["oldest_message"] is None
    assert "oldest_message_timestamp_seconds{" not in pool.metrics()
    write(pool.path(0), make_record(0, store_ms=1_700_000_000_456))
    assert pool.status()["oldest_message"] == 1_700_000_000.456
    write(pool.path(1), make_record(pool.segment_size, store_ms=1_700_000_001_000))
    pool.path(0).unlink()
    assert pool.status()["oldest_message"] == 1_700_000_001.0
    assert 'oldest_message_timestamp_seconds{pool="test"} 1.700000001e+09' in pool.metrics()


def test_reading_control_files_leaves_nothing_open(filled: PoolMount) -> None:
    assert filled.daemon is not None
    directory = f"/proc/{filled.daemon.pid}/fd"
    for name in ("log", "status.json", "metrics"):
        control(filled, name).read_bytes()
    before = len(os.listdir(directory))
    for _ in range(20):
        for name in ("log", "status.json", "metrics"):
            control(filled, name).read_bytes()
    eventually(lambda: len(os.listdir(directory)) <= before)
