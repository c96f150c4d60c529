"""docs/pipeline.md names every option, column and verb; its defaults are those in effect."""

import re
from pathlib import Path
from typing import Any

from commitlogfs.console.exit_status import ExitCode
from commitlogfs.pipeline import cli
from commitlogfs.pipeline.broker.system_topics import HALF_TOPICS_SINCE, SYSTEM_PREFIX, SYSTEM_TOPICS_SINCE
from commitlogfs.pipeline.jobs.export import DEFAULT_FILE_BYTES, DEFAULT_RANGE_BYTES, ExportResult
from commitlogfs.pipeline.jobs.stats import Group, GroupedStats, LogStats, TopicStats
from commitlogfs.pipeline.log.splits import DEFAULT_SPLIT_BYTES
from commitlogfs.pipeline.replay.run import ReplayResult
from commitlogfs.pipeline.source.columns import COLUMNS
from commitlogfs.pipeline.source.data_source import COLUMN_TYPES
from commitlogfs.pipeline.source.group_keys import KEYS, Kind, parse_keys
from commitlogfs.pipeline.source.options import OPTION_NAMES
from commitlogfs.pipeline.source.tally import Figures

TEXT = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text()


def section(heading: str) -> str:
    return re.split(r"\n##+ ", TEXT.split(f"{heading}\n", maxsplit=1)[1], maxsplit=1)[0]


def first_cells(text: str) -> list[str]:
    return [
        name
        for line in text.splitlines()
        if line.startswith("|")
        for name in re.findall(r"`(\w+)`", line.split("|")[1])
    ]


def test_every_option_and_column_is_there() -> None:
    assert first_cells(section('## Options of `format("commitlog")`')) == list(OPTION_NAMES)
    words = " ".join(section("## Columns").split())
    described = [f"`{name}` {kind.simpleString()}" for name, kind in COLUMN_TYPES.items()]
    shown = words.replace(" long", " bigint")
    assert all(text in shown for text in described)
    assert list(COLUMN_TYPES) == COLUMNS.names


def test_every_topic_of_the_broker_is_there() -> None:
    table = section("### The broker's own topics")
    rows = re.findall(r"^\| (`.*`) \| ([\d.]+) \| `(\w+)` \|$", table, re.MULTILINE)
    described = {
        (name, tuple(map(int, since.split("."))), option)
        for names, since, option in rows
        for name in re.findall(r"`([^`]+)`", names)
    }
    assert described == {
        (f"{SYSTEM_PREFIX.decode()}*", (4, 0, 0), "includeSystemTopics"),
        *((name.decode(), since, "includeSystemTopics") for name, since in SYSTEM_TOPICS_SINCE.items()),
        *((name.decode(), since, "includeHalfMessages") for name, since in HALF_TOPICS_SINCE.items()),
    }


def test_every_key_of_an_aggregation_is_there() -> None:
    rows = [
        line.split("|") for line in section("## Aggregation in the workers").splitlines() if line.startswith("| `")
    ]
    assert {name for row in rows for name in re.findall(r"`([^`]+)`", row[1])} == set(KEYS)
    shown = " ".join(row[2] for row in rows)
    assert all(f"`{key.column}`" in shown for key in KEYS.values() if key.kind is Kind.TIME)


def test_every_verb_status_and_default_is_there() -> None:
    for command in cli.app.registered_commands:
        assert command.callback is not None
        assert f"\n### {command.callback.__name__}\n" in TEXT
    rows = re.findall(r"^\| (\d) \|", section("## Jobs"), re.MULTILINE)
    assert rows == [str(int(code)) for code in ExitCode if code not in (ExitCode.HANDED_OVER, ExitCode.INTERRUPTED)]
    assert (DEFAULT_SPLIT_BYTES, DEFAULT_FILE_BYTES, DEFAULT_RANGE_BYTES) == (128 << 20, 512 << 20, 8 << 30)
    assert "`128m`" in TEXT
    words = " ".join(TEXT.split())
    assert "8 GiB of the log" in words
    assert "512 MiB of the log" in words


def test_every_key_of_the_json_is_there() -> None:
    topic = TopicStats(1, 1, 1, 1, 1, 0, 0)
    place: dict[str, Any] = {
        "log": "log",
        "segments": 1,
        "start_offset": 0,
        "end_offset": 1,
        "damages": (),
        "missing": (),
    }
    counted = LogStats(**place, total=topic, topics={"t": topic}).as_json()
    group = Group(("t", 0), Figures(1, 1, 1, 1, 0, 0))
    by_hour = GroupedStats(**place, keys=parse_keys("topic,hour(storeTimestamp)"), groups=(group,)).as_json()
    figures = {key: value for key, value in by_hour["groups"][0].items() if key not in ("topic", "storeHour")}
    exported = ExportResult("out", (), 0, 0, (), ()).as_json()
    for text, document in (
        (section("### stats"), {**counted, **topic.as_json()}),
        (section("### stats"), {**by_hour, **figures}),
        (section("### export"), exported),
        (section("### replay"), ReplayResult().as_json()),
    ):
        assert [key for key in document if f"`{key}`" not in text] == []
