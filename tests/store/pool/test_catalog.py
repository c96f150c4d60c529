import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.files import packed_attributes

from commitlogfs.store.disks.membership import DiskNumber
from commitlogfs.store.files.attributes import PackedAttributes
from commitlogfs.store.pool.catalog import NEWEST_KEPT, Catalog, Role, Segment
from commitlogfs.store.segment import BaseOffset

SIZE = 4096


def make(index: int, disk: int = 1, ino: int | None = None, size: int = SIZE) -> Segment:
    return Segment(BaseOffset(index * SIZE), DiskNumber(disk), packed_attributes(ino=ino or index + 100, size=size))


class Naive:
    """The catalog as anyone would write it: a list, searched from the front."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []

    def get(self, offset: int):
        return next((s for s in self.segments if s.base_offset == offset), None)

    def find(self, offset: int):
        return next((s for s in self.segments if s.base_offset <= offset < s.base_offset + SIZE), None)

    def by_ino(self, disk: int, ino: int):
        return next((s for s in self.segments if (s.disk, s.ino) == (disk, ino)), None)

    def predecessor(self, offset: int):
        before = [s for s in self.segments if s.base_offset < offset]
        return max(before, key=lambda s: s.base_offset, default=None)

    def after(self, offset: int):
        return sorted((s for s in self.segments if s.base_offset > offset), key=lambda s: s.base_offset)

    def gaps(self):
        bases = sorted(s.base_offset for s in self.segments)
        missing = set(range(bases[0], bases[-1], SIZE)) - set(bases) if bases else set()
        ranges: list[tuple[int, int]] = []
        for offset in sorted(missing):
            if ranges and ranges[-1][1] == offset:
                ranges[-1] = (ranges[-1][0], offset + SIZE)
            else:
                ranges.append((offset, offset + SIZE))
        return ranges


indexes = st.integers(0, 30)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.just(0)),
        st.tuples(st.just("add"), indexes),
        st.tuples(st.just("add_empty"), indexes),
        st.tuples(st.just("resize"), indexes),
        st.tuples(st.just("remove"), indexes),
        st.tuples(st.just("remove_first"), st.just(0)),
        st.tuples(st.just("find"), st.integers(-1, 32 * SIZE)),
    ),
    max_size=60,
)


@given(steps, st.integers(0, 12))
def test_catalog_answers_as_a_linear_scan_does(chosen, first):
    catalog, naive, next_ino = Catalog(SIZE), Naive(), 100
    probes = [-1, 0]
    for step, value in chosen:
        index = (
            (naive.after(-1)[-1].base_offset // SIZE + 1 if naive.segments else first)
            if step == "append"
            else value
        )
        next_ino += 1
        if step == "find":
            probes.append(value)
        elif step in ("append", "add", "add_empty"):
            segment = make(index, disk=index % 3 + 1, ino=next_ino, size=0 if step == "add_empty" else SIZE)
            if naive.get(index * SIZE) is None:
                catalog.add(segment)
                naive.segments.append(segment)
            else:
                with pytest.raises(ValueError, match="taken"):
                    catalog.add(segment)
            probes += [index * SIZE - 1, index * SIZE, index * SIZE + SIZE - 1, index * SIZE + SIZE]
        elif step == "resize":
            resized = naive.get(index * SIZE)
            if resized is not None:
                size = 0 if resized.size else SIZE
                resized.attributes = packed_attributes(ino=resized.ino, size=size)
                catalog.record_size(resized)
        elif naive.segments:
            gone = naive.after(-1)[0] if step == "remove_first" else naive.get(index * SIZE)
            if gone is None:
                with pytest.raises(KeyError):
                    catalog.remove(make(index, ino=next_ino))
            else:
                catalog.remove(gone)
                naive.segments.remove(gone)
        ordered = naive.after(-1)
        assert list(catalog) == ordered
        assert len(catalog) == len(ordered)
        assert (catalog.first, catalog.last) == ((ordered[0], ordered[-1]) if ordered else (None, None))
        assert catalog.gaps() == naive.gaps()
        assert catalog.gap_count == len(naive.gaps())
        whole = [segment for segment in ordered if segment.size == SIZE]
        assert catalog.partial_count == len(ordered) - len(whole)
        assert (catalog.first_whole, catalog.last_whole) == ((whole[0], whole[-1]) if whole else (None, None))
        for disk in map(DiskNumber, (1, 2, 3)):
            assert catalog.whole_count_on_disk(disk) == sum(segment.disk == disk for segment in whole)
    for offset in probes:
        assert catalog.get(offset) is naive.get(offset)
        assert catalog.find(offset) is naive.find(offset)
        assert catalog.predecessor(offset) is naive.predecessor(offset)
        assert list(catalog.after(offset)) == naive.after(offset)
    for segment in naive.segments:
        assert catalog.by_ino(segment.disk, segment.ino) is segment
    assert catalog.by_ino(DiskNumber(1), 99) is None


def test_two_files_never_share_an_inode():
    catalog = Catalog(SIZE)
    catalog.add(make(0, disk=1, ino=7))
    catalog.add(make(1, disk=2, ino=7))
    with pytest.raises(ValueError, match="inode 7 is taken"):
        catalog.add(make(2, disk=1, ino=7))
    assert [segment.base_offset for segment in catalog] == [0, SIZE], "a refused segment leaves no trace"
    assert catalog.get(2 * SIZE) is None


def test_removing_a_stranger_of_the_same_name_changes_nothing():
    catalog = Catalog(SIZE)
    catalog.add(make(0, ino=7))
    with pytest.raises(KeyError):
        catalog.remove(make(0, ino=8))
    with pytest.raises(KeyError):
        catalog.remove(make(0, ino=7))
    assert len(catalog) == 1


def test_a_path_tells_where_a_file_lies():
    attributes: PackedAttributes = packed_attributes(ino=1, size=0)
    base, disk = BaseOffset(SIZE), DiskNumber(1)
    assert Segment(base, disk, attributes).path == b"00000000000000004096"
    temporary = Segment(base, disk, attributes, Role.TEMPORARY, b".00000000000000004096.x")
    assert temporary.path == b".00000000000000004096.x"
    retired = Segment(base, disk, attributes, Role.RETIRED, b"00000000000000004096.0123abcd")
    assert retired.path == b".commitlogfs/00000000000000004096.0123abcd"


@pytest.mark.timing
def test_lookup_in_a_contiguous_log_does_not_grow_with_it():
    """O(1): a thousand times the segments cost about the same, where a search from the front costs the lot."""

    def seconds(count: int) -> float:
        catalog = Catalog(SIZE)
        for index in range(7, count + 7):
            catalog.add(make(index))
        offsets = [7 * SIZE + step * 7919 % (count * SIZE) for step in range(2000)]
        best = float("inf")
        for _ in range(5):
            started = time.process_time()
            for offset in offsets:
                catalog.find(offset)
            best = min(best, time.process_time() - started)
        return best

    assert seconds(20_000) < 20 * seconds(20)


def test_the_newest_and_partial_segments_are_not_settled() -> None:
    segments = [make(index, size=SIZE if index != 1 else 0) for index in range(6)]
    catalog = Catalog(SIZE, segments)
    assert [catalog.is_settled(segment) for segment in segments] == [True, False, True] + [False] * NEWEST_KEPT
    assert not catalog.is_settled(make(0))  # another file with the same numbers
    catalog.remove(segments[5])
    assert not catalog.is_settled(segments[2])


def test_the_ledger_of_checksums_follows_the_segments() -> None:
    segments = [make(index, disk=1 + index % 2) for index in range(4)]
    catalog = Catalog(SIZE, segments)
    assert catalog.checksum_count == 0
    for segment in segments:
        catalog.record_checksum(segment, is_valid=True)
    catalog.record_checksum(make(2), is_valid=False)  # another file
    assert (catalog.checksum_count, catalog.without_checksum(DiskNumber(1))) == (4, set())
    catalog.record_checksum(segments[0], is_valid=False)
    assert (catalog.checksum_count, catalog.without_checksum(DiskNumber(1))) == (3, {0})
    copy = make(1, disk=1, ino=500)
    catalog.replace(segments[1], copy)
    assert (catalog.checksum_count, catalog.without_checksum(DiskNumber(1))) == (2, {0, SIZE})
    catalog.remove(segments[0])
    catalog.remove(copy)
    assert (catalog.checksum_count, catalog.without_checksum(DiskNumber(1))) == (2, set())
    assert catalog.without_checksum(DiskNumber(3)) == set()
