"""An audit as one self-contained HTML page: without scripts and external files, with plots inline."""

import html
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from commitlogfs.pipeline.jobs.audit import AuditReport
from commitlogfs.pipeline.jobs.findings import MEANINGS
from commitlogfs.pipeline.log.errors import LocationError

_TOPICS_DRAWN = 15
_MIB = 1 << 20

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1b1f24; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; } tr:nth-child(even) { background: #f4f6f8; }
td, th { text-align: left; padding: .25rem .6rem; vertical-align: top; font-variant-numeric: tabular-nums; }
.verdict { padding: .6rem 1rem; border-radius: .4rem; font-weight: 600; }
.whole { background: #e3f4e6; } .broken { background: #fbe4e1; } svg { max-width: 100%; height: auto; }
"""


def write_page(report: AuditReport, path: Path) -> None:
    """Write the page. Raises LocationError if `path` cannot be written."""
    try:
        path.write_text(_page(report), "utf-8")
    except OSError as error:
        raise LocationError(f"{path}: {error.strerror}; name another path for the page") from error


def _page(report: AuditReport) -> str:
    title = f"Audit of {report.log}"
    parts = [
        f"<h1>{_text(title)}</h1>",
        _verdict(report),
        "<h2>What was read</h2>",
        _facts(report),
        *_findings(report),
        *_notes(report),
        "<h2>Records by hour of their store time</h2>",
        _plot_hours(report),
        "<h2>Bytes by topic</h2>",
        _plot_topics(report),
    ]
    if report.findings.total:
        parts += ["<h2>Where in the log</h2>", _plot_places(report)]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{_text(title)}</title>'
        f"<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _verdict(report: AuditReport) -> str:
    if report.is_whole:
        return f'<p class="verdict whole">No findings: {_text(" and ".join(report.compared))} agree.</p>'
    return f'<p class="verdict broken">{report.findings.total:,} findings.</p>'


def _facts(report: AuditReport) -> str:
    return _table(
        [
            ("log offsets", f"{report.begin_offset:,} to {report.end_offset:,}"),
            ("segments", f"{report.segments:,}"),
            ("records", f"{report.found.records:,}"),
            ("bytes of records", f"{report.found.record_bytes:,}"),
            ("queues", f"{report.queues:,}, {report.queue_entries:,} entries match"),
            ("index", f"{report.index_files:,} files for {report.found.keys:,} keys"),
            ("compared", ", ".join(report.compared)),
            ("time", f"{report.seconds:.1f} s"),
        ]
    )


def _findings(report: AuditReport) -> list[str]:
    if not report.findings.total:
        return []
    counts = [(str(kind), f"{count:,}", MEANINGS[kind]) for kind, count in sorted(report.findings.counts.items())]
    shown = [
        (str(one.kind), str(one.offset) if one.offset >= 0 else "", one.where, one.detail)
        for one in report.findings.all_shown()
    ]
    return [
        "<h2>Findings</h2>",
        _table(counts, ("kind", "number", "meaning")),
        "<h2>The first of each kind</h2>",
        _table(shown, ("kind", "log offset", "where", "what")),
    ]


def _notes(report: AuditReport) -> list[str]:
    if not report.notes:
        return []
    return ["<h2>Notes</h2><ul>", *(f"<li>{_text(note)}</li>" for note in report.notes), "</ul>"]


def _table(rows: Sequence[tuple[str, ...]], head: tuple[str, ...] = ()) -> str:
    lines = ["<table>"]
    if head:
        lines.append("<tr>" + "".join(f"<th>{_text(name)}</th>" for name in head) + "</tr>")
    lines += ["<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    return "".join([*lines, "</table>"])


def _text(text: str) -> str:
    """`text` escaped for HTML: producers choose the names of topics."""
    return html.escape("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text))


# --- plots -----------------------------------------------------------------------------------------------


def _plot_hours(report: AuditReport) -> str:
    from matplotlib.figure import Figure

    hours = sorted(report.found.hours)
    if not hours:
        return "<p>No records.</p>"
    # Hours are drawn side by side: one record with a damaged time would stretch a time axis over centuries.
    figure = Figure(figsize=(9, 2.6), layout="constrained")
    axes = figure.subplots()
    axes.bar(range(len(hours)), [report.found.hours[hour] for hour in hours], width=0.9, color="#3b6ea5")
    step = max(1, len(hours) // 8)
    axes.set_xticks(range(0, len(hours), step), [_hour(hour) for hour in hours[::step]], fontsize=8)
    axes.set_ylabel("records")
    return _svg(figure)


def _plot_topics(report: AuditReport) -> str:
    from matplotlib.figure import Figure

    topics = report.found.topics.most_common(_TOPICS_DRAWN)
    if not topics:
        return "<p>No records.</p>"
    figure = Figure(figsize=(9, 0.6 + 0.32 * len(topics)), layout="constrained")
    axes = figure.subplots()
    names = [_plain(name) for name, _ in topics]
    axes.barh(range(len(names)), [size / _MIB for _, size in topics], color="#3b6ea5")
    axes.set_yticks(range(len(names)), names, fontsize=8, parse_math=False)
    axes.invert_yaxis()
    axes.set_xlabel("MiB of records")
    return _svg(figure)


def _plot_places(report: AuditReport) -> str:
    from matplotlib.figure import Figure

    places = [(one.offset, str(one.kind)) for one in report.findings.all_shown() if one.offset >= 0]
    if not places:
        return "<p>None of the findings has a log offset.</p>"
    kinds = sorted({kind for _, kind in places})
    figure = Figure(figsize=(9, 0.8 + 0.3 * len(kinds)), layout="constrained")
    axes = figure.subplots()
    axes.plot(
        [offset for offset, _ in places], [kinds.index(kind) for _, kind in places], "|", color="#b3372b", ms=14
    )
    axes.set_yticks(range(len(kinds)), kinds, fontsize=8)
    axes.set_ylim(-0.6, len(kinds) - 0.4)
    axes.set_xlim(report.begin_offset, max(report.end_offset, report.begin_offset + 1))
    axes.set_xlabel("log offset")
    return _svg(figure)


def _plain(name: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in name[:60])


def _hour(hour: int) -> str:
    from datetime import UTC, datetime, timedelta

    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(hours=hour)).strftime("%Y-%m-%d\n%H:%M")
    except OverflowError:
        return "?"


def _svg(figure: Any) -> str:
    import matplotlib as mpl

    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none"}):  # text stays text, which is smaller and searchable
        figure.savefig(buffer, format="svg")
    drawing = buffer.getvalue()
    return re.sub(r"<metadata>.*?</metadata>", "", drawing[drawing.index("<svg") :], flags=re.DOTALL)
