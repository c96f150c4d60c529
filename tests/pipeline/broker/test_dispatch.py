"""Entries for the records of a log, compared with RocketMQ's dispatch in plain Python."""

import pickle
import random
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rebuilding import rebuild_in_process
from support.records import V2, make_record
from support.rocketmq_store import RocketmqStore
from support.written_logs import Maker, WrittenLog, write_log

from commitlogfs.pipeline.broker.dispatch import (
    Dispatcher,
    DispatchRules,
    Entries,
    MultiDispatch,
    QueueKey,
    UndispatchableRecordError,
)
from commitlogfs.pipeline.broker.settings import BrokerSettings
from commitlogfs.pipeline.jobs.rebuild_tasks import decode_splits, only_summaries
from commitlogfs.pipeline.log.scanner import DamageMode
from commitlogfs.pipeline.log.segments import list_segments
from commitlogfs.pipeline.log.splits import plan_splits
from commitlogfs.store.record import decode

SEGMENT = 1 << 14
MS = 1_700_000_000_000
COMMIT, PREPARED, ROLLBACK = 8, 4, 12

SETTINGS = BrokerSettings(queue_file_size=100, batch_queue_file_size=2 * 46, index_slots=11, index_capacity=9)


def props(**values: str) -> bytes:
    return b"".join(f"{name}\x01{value}\x02".encode() for name, value in values.items())


def message(**fields: object) -> Maker:
    return lambda offset: make_record(offset, **fields)  # type: ignore[arg-type]


def oracle_of(log: WrittenLog, settings: BrokerSettings) -> RocketmqStore:
    rules = settings.rules
    store = RocketmqStore(
        settings.queue_file_size,
        settings.batch_queue_file_size,
        settings.index_slots,
        settings.index_capacity,
        rules.index_tags,
        rules.multi_dispatch is not None,
        rules.lmq,
        rules.batch_topics or frozenset(),
    )
    for offset in log.offsets:
        segment = log.segment_at(offset).read_bytes()
        store.dispatch(decode(segment[offset % log.segment_size :], offset))
    return store


def check(
    directory: Path, makers: list[Maker], settings: BrokerSettings = SETTINGS, split_size: int = SEGMENT
) -> None:
    """Rebuilt, it is what RocketMQ's code makes of the same records."""
    log = write_log(directory / "log", SEGMENT, makers)
    expected = oracle_of(log, settings).files()
    found, _ = rebuild_in_process(log.directory, directory / "building", settings, split_size)
    last = f"index/{sum(name.startswith('index/') for name in expected) - 1}"
    if last not in found and not any(expected[last][SETTINGS.index_slots * 4 + 40 :]):
        del expected[last]  # without a key: made by the driver
    assert found == expected


def test_tags_and_keys_are_hashed_as_java_does(tmp_path: Path) -> None:
    texts = ["A", "ä", "\N{GRINNING FACE}", "polygenelubricants", "Aa BB", " a  b ", "€" * 50]
    check(tmp_path, [message(properties=props(UNIQ_KEY="7F", KEYS=text, TAGS=text), topic=b"T") for text in texts])


def test_tags_enter_the_index_from_5_4_on_only(tmp_path: Path) -> None:
    old = replace(SETTINGS, rules=DispatchRules(index_tags=False))
    check(tmp_path, [message(properties=props(TAGS="A", KEYS="k"))], old)


def test_a_delayed_message_has_its_due_time_for_a_tags_code(tmp_path: Path) -> None:
    schedule = b"SCHEDULE_TOPIC_XXXX"
    check(
        tmp_path,
        [
            message(topic=schedule, properties=props(DELAY=str(level), TAGS="A"))
            for level in (1, 3, 18, 19, 99, 0, -1)
        ]
        + [message(topic=b"Other", properties=props(DELAY="3", TAGS="A"))]
        + [message(topic=schedule, properties=props(TAGS="A"))],
    )


def test_a_level_that_is_no_number_stops_the_rebuild_as_it_stops_the_broker(tmp_path: Path) -> None:
    makers = [message(topic=b"SCHEDULE_TOPIC_XXXX", properties=props(DELAY="soon"))]
    log = write_log(tmp_path / "log", SEGMENT, makers)
    with pytest.raises(
        UndispatchableRecordError, match="log offset 0: property DELAY is 'soon', which is not a number"
    ):
        rebuild_in_process(log.directory, tmp_path / "building", SETTINGS, SEGMENT)


def test_what_cannot_be_dispatched_is_damage_that_permissive_mode_skips(tmp_path: Path) -> None:
    schedule = b"SCHEDULE_TOPIC_XXXX"
    bad = [
        message(topic=schedule, properties=props(DELAY="soon")),
        message(topic=b"a/b"),
        message(topic=b".."),
        message(properties=props(INNER_MULTI_DISPATCH="a,b", INNER_MULTI_QUEUE_OFFSET="1,x")),
    ]
    good = [message(properties=props(KEYS=f"k{n}"), queue_offset=n) for n in range(9)]
    log = write_log(tmp_path / "log", SEGMENT, [*good[:4], bad[0], *good[4:6], bad[1], bad[2], *good[6:], bad[3]])
    wrong = [log.offsets[n] for n in (4, 7, 8, 12)]
    ends = dict(zip(log.offsets, [*log.offsets[1:], log.end], strict=True))
    settings = replace(SETTINGS, rules=DispatchRules(multi_dispatch=MultiDispatch()), queue_file_size=1000)
    with pytest.raises(UndispatchableRecordError, match=f"log offset {wrong[1]}: topic"):
        rebuild_in_process(log.directory, tmp_path / "failfast", settings, SEGMENT)
    for split_size in (300, SEGMENT):
        splits = plan_splits(list_segments(str(log.directory)), log.end, split_size=split_size)
        decode_all = partial(decode_splits, range(len(splits)), splits=splits, rules=settings.rules)
        decoded = tmp_path / f"d{split_size}"
        decoded.mkdir()
        items = decode_all(mode=DamageMode.PERMISSIVE, building=decoded, queues=True, index=True)
        summaries = list(only_summaries(items))
        damages = [damage for summary in summaries for damage in summary.damages]
        assert [(damage.offset, damage.length) for damage in damages] == [(at, ends[at] - at) for at in wrong]
        assert {damage.segment for damage in damages} == {"0" * 20}
        assert [damage.reason[:21] for damage in damages[:2]] == ["property DELAY is 'so", "topic 'a/b' cannot be"]
        assert sum(summary.records for summary in summaries) == len(good)
        assert max(summary.last_offset for summary in summaries) == log.offsets[-2]
        building = tmp_path / f"p{split_size}"
        found, figures = rebuild_in_process(log.directory, building, settings, split_size, DamageMode.PERMISSIVE)
        assert figures["written"] == len(good)
        assert [name for name in found if "consumequeue" in name] == ["consumequeue/TopicTest/3/" + "0" * 20]


def test_the_error_travels_between_processes() -> None:
    error = pickle.loads(pickle.dumps(UndispatchableRecordError.at(5, "no number")))  # noqa: S301
    assert (error.reason, str(error)) == ("no number", "log offset 5: no number")


@pytest.mark.parametrize("text", ["1_0", " 1", "1 ", "", "+", "-", "0x1", "9223372036854775808", "9" * 5000])
def test_other_queue_offsets_are_numbers_as_java_reads_them(text: str) -> None:
    def dispatch(offset: str) -> Entries:
        record = make_record(
            0, properties=props(INNER_MULTI_DISPATCH="a,b", INNER_MULTI_QUEUE_OFFSET=f"{offset},7")
        )
        data = np.frombuffer(record, np.uint8)
        return (
            Dispatcher(DispatchRules(multi_dispatch=MultiDispatch())).dispatch(data, np.zeros(1, np.int64)).entries
        )

    with pytest.raises(UndispatchableRecordError, match="log offset 0: property INNER_MULTI_QUEUE_OFFSET is"):
        dispatch(text)
    for good in ("+5", "-0", "0007", "9223372036854775807", "-9223372036854775808"):
        assert dispatch(good).queue_offsets.tolist() == [42, int(good), 7]


@pytest.mark.parametrize(
    ("sys_flag", "entries", "keys"), [(0, 1, 1), (PREPARED, 0, 1), (COMMIT, 1, 1), (ROLLBACK, 0, 0)]
)
def test_transactions(sys_flag: int, entries: int, keys: int) -> None:
    data = np.frombuffer(make_record(0, sys_flag=sys_flag, properties=props(UNIQ_KEY="7F")), np.uint8)
    found = Dispatcher(DispatchRules()).dispatch(data, np.zeros(1, np.int64))
    assert (found.entries.offsets.size, found.keys.offsets.size) == (entries, keys)


def test_an_inner_batch_is_one_entry_with_its_base_and_count(tmp_path: Path) -> None:
    rules = DispatchRules(batch_topics=frozenset({"Batch"}))
    check(
        tmp_path,
        [
            message(topic=b"Batch", properties=props(INNER_BASE="5", INNER_NUM="3", TAGS="A"), sys_flag=1 << 7),
            message(topic=b"Batch", properties=props(INNER_BASE="8", INNER_NUM="2")),
            message(topic=b"Batch", properties=props(INNER_BASE="8")),
            message(topic=b"Batch", properties=props(INNER_BASE="-1", INNER_NUM="2")),
            message(topic=b"Batch", properties=props(INNER_BASE="10", INNER_NUM="32767")),
            message(topic=b"Plain", properties=props(INNER_BASE="5", INNER_NUM="3")),
        ],
        replace(SETTINGS, rules=rules),
    )


def test_a_single_message_in_a_batch_queue_is_a_batch_of_one(tmp_path: Path) -> None:
    batch = partial(message, topic=b"Batch")
    check(
        tmp_path,
        [
            batch(queue_offset=0, properties=props(TAGS="A")),
            batch(queue_offset=1, properties=props(INNER_BASE="1", INNER_NUM="3"), sys_flag=1 << 7),
            batch(queue_offset=4, properties=props(INNER_BASE="77")),
            batch(queue_offset=5, properties=props(INNER_NUM="7")),
            batch(queue_offset=-1),
            batch(queue_offset=9, sys_flag=PREPARED),
            batch(queue_offset=6, properties=props(INNER_BASE="6", INNER_NUM="0")),
            batch(queue_offset=7, properties=props(INNER_BASE="7", INNER_NUM="-3")),
            batch(queue_offset=50, properties=props(INNER_BASE="+50", INNER_NUM="0001")),
            # Only singles, and beside them a topic with ordinary queues.
            *(message(topic=b"Singles", queue_offset=n) for n in range(5)),
            *(message(topic=b"Plain", queue_offset=n) for n in range(2)),
        ],
        replace(SETTINGS, rules=DispatchRules(batch_topics=frozenset({"Batch", "Singles"}))),
    )


@pytest.mark.parametrize("topic", [b"Batch", b"Plain"])
@pytest.mark.parametrize(
    ("base", "count", "named"),
    [("x", "1", "INNER_BASE is 'x'"), ("1", "x", "INNER_NUM is 'x'"), ("1", "32768", "INNER_NUM is '32768'")],
)
def test_a_batch_without_numbers_stops_the_rebuild(topic: bytes, base: str, count: str, named: str) -> None:
    """As it stops a broker, whatever the type of the queue; RocketMQ 4 knows no batches."""
    record = make_record(5, topic=topic, properties=props(INNER_BASE=base, INNER_NUM=count), queue_offset=3)
    data, positions = np.frombuffer(record, np.uint8), np.zeros(1, np.int64)
    with pytest.raises(UndispatchableRecordError, match=f"log offset 5: property {named}, which is not a number"):
        Dispatcher(DispatchRules(batch_topics=frozenset({"Batch"}))).dispatch(data, positions)
    old = DispatchRules(inner_batches=False, batch_topics=frozenset())
    assert Dispatcher(old).dispatch(data, positions).entries.queue_offsets.tolist() == [3]


def test_a_batch_is_refused_where_queue_types_are_unknown() -> None:
    record = make_record(5, topic=b"T", properties=props(INNER_BASE="3", INNER_NUM="4"), sys_flag=1 << 7)
    data, positions = np.frombuffer(record, np.uint8), np.zeros(1, np.int64)
    with pytest.raises(UndispatchableRecordError, match=r"log offset 5: topic T has a batch here.*store root"):
        Dispatcher(DispatchRules()).dispatch(data, positions)
    entries = Dispatcher(DispatchRules(), queues=False).dispatch(data, positions).entries
    assert (entries.queue_offsets.tolist(), entries.counts.tolist()) == ([3], [4])


@pytest.mark.parametrize("lmq", [True, False])
def test_a_message_enters_the_queues_that_it_names(tmp_path: Path, lmq: bool) -> None:
    rules = DispatchRules(multi_dispatch=MultiDispatch(), lmq=lmq)

    def named(names: str, offsets: str, **fields: object) -> Maker:
        values = props(INNER_MULTI_DISPATCH=names, INNER_MULTI_QUEUE_OFFSET=offsets, TAGS="A")
        return message(properties=values, queue_id=2, **fields)

    makers = [
        named("%LMQ%a,%LMQ%b", "0,7", queue_offset=0),
        named("%LMQ%a", "1", queue_offset=1),
        named("%LMQ%a,%LMQ%a", "2,3", queue_offset=2),
        named("plain,with/slash", "4,5", queue_offset=3),
        named("%LMQ%a,%LMQ%b", "9", queue_offset=4),
        named(" ", "9", queue_offset=5),
        named("%LMQ%a,", "4,", queue_offset=6),
        named("%LMQ%c", "0", topic=b"%RETRY%group"),
        named("%LMQ%c", "0", topic=b"rmq_sys_x"),
        named("%LMQ%c", "0", topic=b"SCHEDULE_TOPIC_XXXX"),
        # A queue that is a topic's own, too.
        named("TopicTest", "7", queue_offset=7),
        named("Else", "0", sys_flag=ROLLBACK),
    ]
    check(tmp_path, makers, replace(SETTINGS, rules=rules))


OF_5_1_2 = MultiDispatch(("%RETRY%",), frozenset({"rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX"}))
OF_4_9 = MultiDispatch((), frozenset(), skips_slashes=False)


@pytest.mark.parametrize(
    ("topic", "newest", "of_5_1_2", "of_4_9"),
    [
        ("T", True, True, True),
        ("%DLQ%g", True, True, True),
        ("rmq_sys_x", False, True, True),
        ("rmq_sys_wheel_timer", False, False, True),
        ("SCHEDULE_TOPIC_XXXX", False, False, True),
        ("%RETRY%g", False, False, True),
    ],
)
def test_which_topics_spread_depends_on_the_version(topic: str, newest: bool, of_5_1_2: bool, of_4_9: bool) -> None:
    values = props(INNER_MULTI_DISPATCH="%LMQ%a", INNER_MULTI_QUEUE_OFFSET="0", DELAY="1")
    data = np.frombuffer(make_record(0, topic=topic.encode(), properties=values, store_ms=MS), np.uint8)
    for rules, spreads in ((MultiDispatch(), newest), (OF_5_1_2, of_5_1_2), (OF_4_9, of_4_9)):
        dispatcher = Dispatcher(DispatchRules(multi_dispatch=rules, lmq=True))
        entries = dispatcher.dispatch(data, np.zeros(1, np.int64)).entries
        assert [key.topic for key in dispatcher.queue_keys] == [topic, "%LMQ%a"][: 1 + spreads]
        due = MS + 1000 if topic.startswith("SCHEDULE") else 0
        assert entries.tags_codes.tolist() == [due] * (1 + spreads)


@pytest.mark.parametrize(
    ("names", "offsets", "rules", "why"),
    [
        ("%LMQ%a/b", "0", OF_4_9, "topic '%LMQ%a/b' cannot be the name of a directory"),
        ("a,,b", "0,1,2", MultiDispatch(), "topic '' cannot be the name of a directory"),
        ("%LMQ%" + 251 * "x", "0", MultiDispatch(), "cannot be the name of a directory"),
        ("Batch", "0", MultiDispatch(), "names topic Batch, which has batch queues"),
        ("a,b", ",1", MultiDispatch(), "INNER_MULTI_QUEUE_OFFSET is ',1'"),
    ],
)
def test_a_light_queue_that_cannot_be_is_refused(names: str, offsets: str, rules: MultiDispatch, why: str) -> None:
    values = props(INNER_MULTI_DISPATCH=names, INNER_MULTI_QUEUE_OFFSET=offsets)
    data = np.frombuffer(make_record(7, properties=values), np.uint8)
    dispatcher = Dispatcher(DispatchRules(multi_dispatch=rules, batch_topics=frozenset({"Batch"})))
    with pytest.raises(UndispatchableRecordError, match=f"log offset 7: .*{re.escape(why)}"):
        dispatcher.dispatch(data, np.zeros(1, np.int64))


@pytest.mark.parametrize(
    ("names", "offsets", "queues"),
    [
        (",", "5", []),
        ("\u2003", "5", []),
        ("\u00a0", "5", ["\u00a0"]),
        ("a,", "5,,", ["a"]),
        ("a", "5,6", []),
        ("a/b,c", "5,6", ["c"]),
        ("%LMQ%" + 250 * "x", "5", ["%LMQ%" + 250 * "x"]),
    ],
)
def test_lists_of_light_queues_are_split_as_java_does(names: str, offsets: str, queues: list[str]) -> None:
    values = props(INNER_MULTI_DISPATCH=names, INNER_MULTI_QUEUE_OFFSET=offsets)
    data = np.frombuffer(make_record(0, topic=b"T", properties=values), np.uint8)
    dispatcher = Dispatcher(DispatchRules(multi_dispatch=MultiDispatch()))
    dispatcher.dispatch(data, np.zeros(1, np.int64))
    assert [key.topic for key in dispatcher.queue_keys] == ["T", *queues]


def test_without_multi_dispatch_a_message_enters_its_own_queue_only(tmp_path: Path) -> None:
    check(tmp_path, [message(properties=props(INNER_MULTI_DISPATCH="%LMQ%a", INNER_MULTI_QUEUE_OFFSET="0"))])


def test_queues_are_those_of_the_topics_wanted_from_where_they_begin(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", SEGMENT, [message(topic=b"Again", queue_offset=n) for n in (0, 1, 2)])
    log.append(message(topic=b"Gone", queue_offset=0))
    again = log.append(message(topic=b"Again", queue_offset=0))
    rules = DispatchRules(topics=frozenset({"Again"}), topic_starts={"Again": again})
    found, figures = rebuild_in_process(log.directory, tmp_path / "out", replace(SETTINGS, rules=rules), SEGMENT)
    assert [name for name in found if "consumequeue" in name] == ["consumequeue/Again/3/00000000000000000000"]
    assert (figures["written"], figures["misplaced"]) == (1, 0)


@pytest.mark.parametrize("topic", [b"../../etc", b"..", b".", b"", b"a/b", b"a\0b"])
def test_a_topic_that_is_no_directory_name_is_refused(topic: bytes) -> None:
    data = np.frombuffer(make_record(77, topic=topic), np.uint8)
    with pytest.raises(UndispatchableRecordError, match="log offset 77: topic"):
        Dispatcher(DispatchRules()).dispatch(data, np.zeros(1, np.int64))


def test_queues_are_numbered_as_they_are_met_over_all_chunks() -> None:
    dispatcher = Dispatcher(DispatchRules())
    for topic, queue_id in ((b"A", 1), (b"B", 0), (b"A", 1), (b"A", 2)):
        data = np.frombuffer(make_record(0, topic=topic, queue_id=queue_id), np.uint8)
        dispatcher.dispatch(data, np.zeros(1, np.int64))
    assert dispatcher.queue_keys == [QueueKey("A", 1, False), QueueKey("B", 0, False), QueueKey("A", 2, False)]


words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), max_size=8)
properties = st.dictionaries(
    st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "WAIT", "KEY", "TAG", "UNIQ_KEY_", "__STARTDELIVERTIME"]), words
)
raw_properties = st.lists(
    st.sampled_from([b"KEYS", b"TAGS", b"UNIQ_KEY", b"\x01", b"\x02", b"a", b" ", b"b c"])
).map(b"".join)


@st.composite
def makers(draw: st.DrawFn) -> Maker:
    return message(
        properties=draw(st.one_of(properties.map(lambda values: props(**values)), raw_properties)),
        topic=draw(st.sampled_from([b"A", b"B", "ä".encode(), b"%RETRY%g"])),
        queue_id=draw(st.integers(0, 1)),
        queue_offset=draw(st.integers(0, 12)),
        sys_flag=draw(st.sampled_from([0, 0, 0, PREPARED, COMMIT, ROLLBACK])),
        store_ms=draw(st.integers(MS - 3000, MS + 10**6)),
        magic=draw(st.sampled_from([0xDAA320A7, V2])),
    )


@given(history=st.lists(makers(), min_size=1, max_size=40), split_size=st.sampled_from([200, 1000, SEGMENT]))
def test_any_log_in_any_splits_is_as_rocketmq_dispatches_it(
    tmp_path_factory: pytest.TempPathFactory, history: list[Maker], split_size: int
) -> None:
    check(tmp_path_factory.mktemp("log"), history, split_size=split_size)


def test_a_log_of_many_segments_and_queues_in_splits_of_all_sizes(tmp_path: Path) -> None:
    chance = random.Random(4)  # noqa: S311
    counts: dict[tuple[bytes, int], int] = {}
    history = []
    for _ in range(2000):
        place = (chance.choice([b"A", b"B", b"Topic" * 30]), chance.randrange(5))
        counts[place] = counts.get(place, -1) + 1
        keys = " ".join(str(chance.randrange(50)) for _ in range(chance.randrange(4)))
        history.append(
            message(
                topic=place[0],
                magic=V2,
                queue_id=place[1],
                queue_offset=counts[place],
                properties=props(TAGS=chance.choice("AB"), KEYS=keys, UNIQ_KEY=str(chance.random())),
                store_ms=MS + chance.randrange(10**5),
            )
        )
    for number, split_size in enumerate((999, SEGMENT)):
        check(tmp_path / str(number), history, replace(SETTINGS, index_capacity=700), split_size)
