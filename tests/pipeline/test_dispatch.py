"""What the records of a log ask for, against RocketMQ's dispatch written down in plain Python."""

import pickle
import random
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

from commitlogfs.pipeline.broker_settings import BrokerSettings
from commitlogfs.pipeline.dispatch import Dispatcher, DispatchRules, Entries, QueueKey, UndispatchableRecordError
from commitlogfs.pipeline.jobs.rebuild_tasks import decode_splits, only_summaries
from commitlogfs.pipeline.scanner import DamageMode
from commitlogfs.pipeline.segments import list_segments
from commitlogfs.pipeline.splits import plan_splits
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
        rules.multi_dispatch,
        rules.lmq,
        rules.batch_topics,
    )
    for offset in log.offsets:
        segment = log.segment_at(offset).read_bytes()
        store.dispatch(decode(segment[offset % log.segment_size :], offset))
    return store


def check(
    folder: Path, makers: list[Maker], settings: BrokerSettings = SETTINGS, split_size: int = SEGMENT
) -> None:
    """Rebuilt, it is what RocketMQ's code makes of the same records."""
    log = write_log(folder / "log", SEGMENT, makers)
    expected = oracle_of(log, settings).files()
    found, _ = rebuild_in_process(log.folder, folder / "building", settings, split_size)
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
    with pytest.raises(UndispatchableRecordError, match="log offset 0: property DELAY is 'soon', no number"):
        rebuild_in_process(log.folder, tmp_path / "building", SETTINGS, SEGMENT)


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
    settings = replace(SETTINGS, rules=DispatchRules(multi_dispatch=True), queue_file_size=1000)
    with pytest.raises(UndispatchableRecordError, match=f"log offset {wrong[1]}: a record of topic"):
        rebuild_in_process(log.folder, tmp_path / "failfast", settings, SEGMENT)
    for split_size in (300, SEGMENT):
        splits = plan_splits(list_segments(str(log.folder)), log.end, split_size=split_size)
        decode_all = partial(decode_splits, range(len(splits)), splits=splits, rules=settings.rules)
        decoded = tmp_path / f"d{split_size}"
        decoded.mkdir()
        items = decode_all(mode=DamageMode.PERMISSIVE, building=decoded, queues=True, index=True)
        summaries = list(only_summaries(items))
        damages = [damage for summary in summaries for damage in summary.damages]
        assert [(damage.offset, damage.length) for damage in damages] == [(at, ends[at] - at) for at in wrong]
        assert {damage.segment for damage in damages} == {"0" * 20}
        assert [damage.reason[:21] for damage in damages[:2]] == ["property DELAY is 'so", "a record of topic 'a/"]
        assert sum(summary.records for summary in summaries) == len(good)
        assert max(summary.last_offset for summary in summaries) == log.offsets[-2]
        building = tmp_path / f"p{split_size}"
        found, figures = rebuild_in_process(log.folder, building, settings, split_size, DamageMode.PERMISSIVE)
        assert figures["written"] == len(good)
        assert [name for name in found if "consumequeue" in name] == ["consumequeue/TopicTest/3/" + "0" * 20]


def test_the_error_travels_between_processes() -> None:
    error = pickle.loads(pickle.dumps(UndispatchableRecordError(5, "no number")))  # noqa: S301
    assert (error.offset, error.reason, str(error)) == (5, "no number", "log offset 5: no number")


@pytest.mark.parametrize("text", ["1_0", " 1", "1 ", "", "+", "-", "0x1", "9223372036854775808", "9" * 5000])
def test_other_queue_offsets_are_numbers_as_java_reads_them(text: str) -> None:
    def dispatch(offset: str) -> Entries:
        record = make_record(
            0, properties=props(INNER_MULTI_DISPATCH="a,b", INNER_MULTI_QUEUE_OFFSET=f"{offset},7")
        )
        data = np.frombuffer(record, np.uint8)
        return Dispatcher(DispatchRules(multi_dispatch=True)).dispatch(data, np.zeros(1, np.int64)).entries

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


@pytest.mark.parametrize("lmq", [True, False])
def test_a_message_enters_the_queues_that_it_names(tmp_path: Path, lmq: bool) -> None:
    rules = DispatchRules(multi_dispatch=True, lmq=lmq)

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


def test_without_multi_dispatch_a_message_enters_its_own_queue_only(tmp_path: Path) -> None:
    check(tmp_path, [message(properties=props(INNER_MULTI_DISPATCH="%LMQ%a", INNER_MULTI_QUEUE_OFFSET="0"))])


def test_queues_are_those_of_the_topics_wanted_from_where_they_begin(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log", SEGMENT, [message(topic=b"Again", queue_offset=n) for n in (0, 1, 2)])
    log.append(message(topic=b"Gone", queue_offset=0))
    again = log.append(message(topic=b"Again", queue_offset=0))
    rules = DispatchRules(topics=frozenset({"Again"}), topic_starts={"Again": again})
    found, figures = rebuild_in_process(log.folder, tmp_path / "out", replace(SETTINGS, rules=rules), SEGMENT)
    assert [name for name in found if "consumequeue" in name] == ["consumequeue/Again/3/00000000000000000000"]
    assert (figures["written"], figures["misplaced"]) == (1, 0)


@pytest.mark.parametrize("topic", [b"../../etc", b"..", b".", b"", b"a/b", b"a\0b"])
def test_a_topic_that_is_no_folder_name_is_refused(topic: bytes) -> None:
    data = np.frombuffer(make_record(77, topic=topic), np.uint8)
    with pytest.raises(UndispatchableRecordError, match="log offset 77: a record of topic"):
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
