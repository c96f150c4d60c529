"""An audit as one self-contained HTML page: no scripts, no external files. It looks like the exporter's page."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from importlib import resources
from pathlib import Path
from typing import Any, Final

from commitlogfs.console.formatting import approximate_duration, approximate_size, count_of, moment
from commitlogfs.console.version import VERSION
from commitlogfs.pipeline.jobs.audit import AuditReport
from commitlogfs.pipeline.jobs.findings import MEANINGS, REMEDIES, Finding, Kind
from commitlogfs.pipeline.log.errors import LocationError
from commitlogfs.store.printable import printable

_TOPICS_DRAWN: Final = 15
_BARS: Final = 96
"""Most bars of a chart: neighbouring hours share one in a log of more than four days."""
_WIDTH: Final = 1000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def write_page(report: AuditReport, path: Path) -> None:
    """Write the page. Raises LocationError if `path` cannot be written."""
    try:
        path.write_text(_page(report), "utf-8")
    except OSError as error:
        raise LocationError(f"{path}: {error.strerror}; name another path for the page") from error


def _page(report: AuditReport) -> str:
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    def safe(value: object) -> object:
        """Producers choose the names of topics, which may have control characters besides markup."""
        return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    def commands(text: str) -> Markup:
        """`text` with its commands, which are between backticks, marked as such."""
        parts = enumerate(text.split("`"))
        return Markup("").join(Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in parts)

    environment = Environment(autoescape=True, undefined=StrictUndefined, finalize=safe, trim_blocks=True)
    environment.filters["commands"] = commands
    here = resources.files("commitlogfs.pipeline.jobs")
    look = resources.files("commitlogfs.exporter") / "page/page.css"
    style = Markup(look.read_text("utf-8") + (here / "audit_page.css").read_text("utf-8"))  # noqa: S704 - our own
    template = environment.from_string((here / "audit_page.html").read_text("utf-8"))
    return template.render(content_of(report), style=style) + "\n"


def content_of(report: AuditReport) -> dict[str, Any]:
    """The values that the template shows. Pure."""
    hours, per_bar = _hours(report)
    return {
        "log": report.log,
        "verdict": _verdict(report),
        "summary": _summary(report),
        "kinds": [_kind(report, kind) for kind in Kind if report.findings.counts[kind]],
        "places": _places(report),
        "ends": (_offset(report.begin_offset), _offset(report.end_offset)),
        "notes": report.notes,
        "facts": _facts(report),
        "topics": _topics(report),
        "hours": hours,
        "hours_axis": [bar["begin"] for bar in _ends_and_middle(hours)],
        "hours_label": f"One bar covers {count_of(per_bar, 'hour')} with messages (UTC)",
        "footer": (
            f"commitlogfs-pipeline {VERSION} audit on {report.host}, ended {moment(report.ended_ms)} UTC after "
            f"{approximate_duration(report.seconds)}"
        ),
    }


def _verdict(report: AuditReport) -> str:
    if report.is_whole:
        return "No findings"
    kinds = sum(1 for count in report.findings.counts.values() if count)
    return f"{count_of(report.findings.total, 'finding')} of {count_of(kinds, 'kind')}"


def _summary(report: AuditReport) -> str:
    *others, last = report.compared
    compared = f"{', '.join(others)} and {last}" if others else last
    if report.is_whole and len(report.compared) > 1:
        return f"The {compared} agree, and every record matches its CRCs."
    if report.is_whole:
        return "Every record of the log matches its CRCs."
    return f"Compared: {compared}. What to do is said with each kind of finding."


def _kind(report: AuditReport, kind: Kind) -> dict[str, Any]:
    count = report.findings.counts[kind]
    shown = [one for one in report.findings.all_shown() if one.kind is kind]
    return {
        "name": str(kind),
        "count": f"{count:,}",
        "meaning": _capital(MEANINGS[kind]),
        "remedy": _capital(REMEDIES[kind]),
        "shown_title": f"All {count:,}" if len(shown) >= count else f"The first {len(shown):,} of {count:,}",
        "shown": [{"offset": _place(one), "where": one.where, "detail": one.detail} for one in shown],
    }


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _place(finding: Finding) -> str:
    return f"{finding.offset:,}" if finding.offset >= 0 else "-"


def _offset(offset: int) -> str:
    return f"log offset {offset:,} ({approximate_size(offset)})"


def _places(report: AuditReport) -> list[dict[str, Any]]:
    """One row for each kind whose findings have log offsets."""
    whole = max(1, report.end_offset - report.begin_offset)
    rows = []
    for kind in Kind:
        offsets = [one.offset for one in report.findings.all_shown() if one.kind is kind and one.offset >= 0]
        ticks = {max(0, min(_WIDTH - 3, (offset - report.begin_offset) * _WIDTH // whole)) for offset in offsets}
        if ticks:
            label = f"{count_of(len(offsets), 'place')} of {kind}, from {min(offsets):,} to {max(offsets):,}"
            rows.append({"name": str(kind), "label": label, "ticks": sorted(ticks)})
    return rows


def _facts(report: AuditReport) -> list[tuple[str, str]]:
    size = report.end_offset - report.begin_offset
    return [
        ("Log", f"{approximate_size(size)} in {count_of(report.segments, 'segment')}"),
        ("Log offsets", f"{report.begin_offset:,} to {report.end_offset:,}"),
        ("Messages", f"{report.found.records:,}, {approximate_size(report.found.record_bytes)}"),
        ("Topics", f"{len(report.found.topics):,}"),
        ("Queues", f"{report.queues:,}; {report.queue_entries:,} entries match"),
        ("Index", f"{count_of(report.index_files, 'file')} for {count_of(report.found.keys, 'key')}"),
        ("Compared", ", ".join(report.compared)),
        ("Store", "-" if report.store_root is None else str(report.store_root)),
    ]


def _topics(report: AuditReport) -> list[dict[str, Any]]:
    """The largest, with bars in proportion to the first, and one row for all others."""
    total = max(1, report.found.topics.total())
    largest = report.found.topics.most_common(_TOPICS_DRAWN)
    rest = len(report.found.topics) - len(largest)
    if rest == 1:  # a row for it takes no more room than one for "others"
        largest, rest = report.found.topics.most_common(), 0
    rows = [_topic(name, size, total, largest[0][1]) for name, size in largest]
    if rest:
        others = total - sum(size for _, size in largest)
        rows.append(_topic(f"{rest:,} other topics", others, total, others) | {"is_rest": True})
    return rows


def _topic(name: str, size: int, total: int, full: int) -> dict[str, Any]:
    share = f"{100 * size / total:.0f} %" if 100 * size >= total else "less than 1 %"
    return {
        "name": name,
        "size": approximate_size(size),
        "share": share,
        "width": max(1, size * _WIDTH // max(1, full)),
        "is_rest": False,
    }


def _hours(report: AuditReport) -> tuple[list[dict[str, Any]], int]:
    """The bars, and how many hours each stands for. Only hours with messages are drawn, side by side: one record
    with a damaged time would stretch a time axis over centuries."""
    hours = sorted(report.found.hours)
    per_bar = max(1, -(-len(hours) // _BARS))
    groups = [hours[at : at + per_bar] for at in range(0, len(hours), per_bar)]
    counts = [sum(report.found.hours[hour] for hour in group) for group in groups]
    most = max(counts, default=1)
    return [_bar(group, count, most) for group, count in zip(groups, counts, strict=True)], per_bar


def _bar(hours: Sequence[int], count: int, most: int) -> dict[str, Any]:
    begin = _hour(hours[0])
    until = f" to {_hour(hours[-1])}" if len(hours) > 1 else ""
    return {
        "begin": begin,
        "height": max(1, count * 100 // most),
        "label": f"{begin}{until}: {count_of(count, 'message')}",
    }


def _ends_and_middle(bars: Sequence[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    return [bars[place] for place in sorted({0, len(bars) // 2, len(bars) - 1})] if bars else []


def _hour(hour: int) -> str:
    try:
        return (_EPOCH + timedelta(hours=hour)).strftime("%Y-%m-%d %H:%M")
    except OverflowError:
        return "outside the calendar"
