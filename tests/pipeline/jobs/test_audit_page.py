"""The page of an audit: its content, and how it looks and reads in a real browser."""

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import browser as browsers
from support.browser import THEMES, WIDTHS, Browser

from commitlogfs.console.version import VERSION
from commitlogfs.pipeline.jobs.audit import AuditReport
from commitlogfs.pipeline.jobs.audit_page import content_of, write_page
from commitlogfs.pipeline.jobs.audit_tasks import SplitReport
from commitlogfs.pipeline.jobs.findings import MEANINGS, REMEDIES, SHOWN_PER_KIND, Finding, Findings, Kind

GIB = 1 << 30
HOUR = 472_222
"""2023-11-14 14:00 UTC, counted from 1970."""
MARKUP = "<img src=x onerror=alert(1)>\x1b[2J\u202e{{ 7 * 7 }}"
in_browser = pytest.mark.skipif(bool(browsers.lack()), reason=browsers.lack() or "has a browser")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsers.browser() as started:
        yield started


def report_of(topics: int = 1, hours: int = 1, findings: Findings | None = None, **values: object) -> AuditReport:
    found = SplitReport(
        records=1_234_567,
        record_bytes=3 * GIB // 2,
        keys=3_000_000,
        topics=Counter({f"topic-{number:04}": (number + 1) << 20 for number in range(topics)}),
        hours=Counter({HOUR + hour: 1000 + 37 * hour for hour in range(hours)}),
        findings=findings or Findings(),
    )
    return AuditReport("/var/rocketmq/store/commitlog", None, 0, 3 * GIB, 3, found=found, **values)  # type: ignore[arg-type]


def many_findings() -> Findings:
    """More of one kind than are shown, some of every other."""
    counts = Counter(dict.fromkeys(Kind, 2))
    counts[Kind.BODY_CRC] = 2500
    places = itertools.cycle([5, GIB, 3 * GIB - 1])
    shown = {
        kind: [Finding(kind, next(places), f"{number:020d}", f"detail {number} {MARKUP}") for number in range(2)]
        for kind in Kind
    }
    shown[Kind.BODY_CRC] = [
        Finding(Kind.BODY_CRC, 1000 * number, f"{0:020d}", "the body does not match")
        for number in range(SHOWN_PER_KIND)
    ]
    shown[Kind.QUEUE_MISSING] = [Finding(Kind.QUEUE_MISSING, -1, "orders/0", "no files")]
    return Findings(counts, shown)


STATES = {
    "nothing found, one topic": report_of(),
    "no messages": report_of(topics=0, hours=0),
    "five thousand topics, a year": report_of(topics=5000, hours=8760, compared=("log", "queues", "index")),
    "findings of every kind": report_of(40, 50, many_findings(), notes=[f"note of {MARKUP}"], seconds=75.0),
    "names with markup": AuditReport(
        f"/data/{MARKUP}", None, 0, GIB, 1, found=SplitReport(topics=Counter({MARKUP: 5, "a" * 300: 7}))
    ),
}


def test_who_made_the_page_and_when() -> None:
    footer = content_of(report_of(seconds=75.0, ended_ms=1_700_000_000_000, host="broker-a"))["footer"]
    assert footer == f"commitlogfs-pipeline {VERSION} audit on broker-a, ended 2023-11-14 22:13:20 UTC after 75 s"


def test_every_kind_has_a_meaning_and_a_remedy() -> None:
    assert set(MEANINGS) == set(REMEDIES) == set(Kind)


def test_findings_come_first_with_what_to_do(tmp_path: Path) -> None:
    page = tmp_path / "audit.html"
    write_page(STATES["findings of every kind"], page)
    text = page.read_text()
    places = [
        text.index(heading) for heading in ("What to do", "Where in the log", "What was read", "Topics by size")
    ]
    assert places == sorted(places)
    content = content_of(STATES["findings of every kind"])
    assert content["verdict"] == f"{2500 + 2 * (len(Kind) - 1):,} findings of {len(Kind)} kinds"
    (crc,) = [kind for kind in content["kinds"] if kind["name"] == "body-crc"]
    assert (crc["count"], crc["shown_title"]) == ("2,500", "The first 100 of 2,500")
    assert crc["remedy"].lower() == REMEDIES[Kind.BODY_CRC].lower()


def test_the_largest_topics_are_named_and_the_others_counted() -> None:
    topics = content_of(STATES["five thousand topics, a year"])["topics"]
    assert [topic["name"] for topic in topics[:2]] == ["topic-4999", "topic-4998"]
    assert topics[-1]["name"] == "4,985 other topics"
    assert topics[-1]["share"] == "99 %"
    assert [topic["width"] for topic in topics[:2]] == [1000, 999]
    assert [topic["name"] for topic in content_of(report_of(topics=16))["topics"]][-1] == "topic-0000"
    assert [topic["share"] for topic in content_of(report_of(topics=1))["topics"]] == ["100 %"]


def test_hours_share_bars_in_a_long_log() -> None:
    content = content_of(STATES["five thousand topics, a year"])
    assert 80 <= len(content["hours"]) <= 96
    assert content["hours_label"] == "One bar covers 92 hours with messages (UTC)"
    assert max(bar["height"] for bar in content["hours"]) == 100
    damaged = report_of(hours=3)
    damaged.found.hours[2**40] = 1
    assert content_of(damaged)["hours"][-1]["begin"] == "outside the calendar"


@pytest.mark.parametrize("state", STATES)
def test_nothing_is_loaded_and_nothing_runs(tmp_path: Path, state: str) -> None:
    page = tmp_path / "audit.html"
    write_page(STATES[state], page)
    text = page.read_text()
    assert "<script" not in text
    assert not re.findall(r"<[^>]*\s(?:src|href)\s*=|url\(|https?://", text)
    assert MARKUP not in text
    assert "\x1b" not in text
    assert ">49<" not in text


@in_browser
@pytest.mark.parametrize(
    "state",
    [
        pytest.param(state, marks=() if state in ("no messages", "findings of every kind") else pytest.mark.full)
        for state in STATES
    ],
)
def test_it_reads_well_in_a_browser(browser: Browser, tmp_path: Path, state: str) -> None:
    page = tmp_path / "audit.html"
    write_page(STATES[state], page)
    for theme in THEMES:
        for width in WIDTHS:
            browser.use(width, theme)
            browser.open(page.as_uri())
            assert browser.overflow() == 0, (theme, width)
            browser.driver.save_screenshot(str(tmp_path / f"{theme}-{width}.png"))
        assert browser.accessibility_faults() == [], theme
    browser.shows("What was read", "Topics by size")
    assert browser.complaints() == []
