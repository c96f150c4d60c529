"""One frame: the heading, alerts, the table of disks, jobs, decisions, keys. Pure."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from commitlogfs.console.formatting import approximate_duration, approximate_size, count_of
from commitlogfs.mount.top.figures import Figures
from commitlogfs.mount.top.styled import Line, Style, paragraph
from commitlogfs.mount.top.table import SORTS, Glyphs, Table, sort_disks
from commitlogfs.mount.views.rebalance_text import describe_rebalance
from commitlogfs.mount.views.scrub_text import describe_summary
from commitlogfs.mount.views.status_text import (
    describe_degraded,
    describe_drain,
    describe_log,
    describe_offline,
    describe_pressure,
)

_FEWEST_DISKS: Final = 3
"""Rows of disks that stay, whatever else there is to show."""
_ALERT_LINES: Final = 3
_HELP: Final = (
    "q           quit",
    "p           pause; again: continue",
    "s           sort by number, used, next threshold, utilisation, written",
    "j k, arrows scroll the disks; PgUp, PgDn, g, G too",
    "Ctrl-L      draw everything again",
    "?           this help; any key closes it",
    "",
    "used        fill level; marks in the bar: thresholds clean, force, full",
    "next        next threshold, and when; skipped: it gets no new segments",
    "read, write bytes per second of the disk's device, all its users together",
    "t/rd, t/wr  time of one read, of one write, waiting included",
    "util, q     part of the time in which the device works; requests under way",
    "",
    "Figures of devices are of the time since the frame before.",
)


@dataclass(slots=True)
class View:
    """How the figures are shown."""

    width: int
    height: int | None
    """None: as many lines as there are."""
    interval_s: float
    is_unicode: bool = True
    sort: str = SORTS[0]
    first: int = 0
    """Index of the first disk that is shown."""
    is_paused: bool = False
    shows_help: bool = False
    has_keys: bool = True


@dataclass(frozen=True, slots=True)
class Frame:
    lines: list[Line]
    disk_rows: int
    """Number of disks that are shown at a time."""


def compose(figures: Figures, view: View) -> Frame:
    """The frame in at most `view.height` lines of at most `view.width` columns."""
    head = [_title(figures, view), *_heading(figures, view)]
    foot = [_keys(figures, view)] if view.has_keys else []
    if view.shows_help:
        body = [Line(), *(Line().add(text) for text in _HELP)]
        return Frame(_cut([*head[:1], *body, *foot], view), len(figures.disks))
    disks = sort_disks(figures.disks, view.sort)
    table = Table(figures, disks, view.width, Glyphs(unicode=view.is_unicode))
    alerts = [_alert_lines(alert, view.width) for alert in _alerts(figures)]
    texts = [*_errors(figures), *_jobs(figures.document)]
    jobs = [line for text in texts for line in paragraph(text, view.width, limit=2, indent="  ")]
    if view.height is None:
        shown = [line for alert in alerts for line in alert]
        rows = [table.row(disk) for disk in disks]
        decisions = list(_decisions(figures))[:5]
        return Frame(_cut([*head, *shown, *_titled(table, rows), *jobs, *decisions], view), len(rows))
    room = view.height - len(head) - len(foot) - 1
    fewest = min(len(disks), _FEWEST_DISKS)
    # Alerts may take the place of disks, as these can be scrolled.
    most = max(0, room - len(disks)) if room - len(disks) >= 4 else max(0, min(4, room - fewest))
    shown = _limited(alerts, most)
    rows_room = max(0, room - len(shown))
    first = max(0, min(view.first, len(disks) - rows_room))
    rows = [table.row(disk) for disk in disks[first : first + rows_room]]
    left = rows_room - len(rows)
    below = _below(jobs, list(_decisions(figures)), left)
    lines = [*head, *shown, *_titled(table, rows), *below]
    lines += [Line()] * (view.height - len(foot) - len(lines))
    foot = [_keys(figures, view, first, len(rows))] if view.has_keys else []
    return Frame(_cut([*lines, *foot], view), len(rows))


def _cut(lines: list[Line], view: View) -> list[Line]:
    return [line.fitted(view.width) for line in lines[: view.height]]


def _titled(table: Table, rows: list[Line]) -> list[Line]:
    return [table.heading(), *rows] if rows else []


def _title(figures: Figures, view: View) -> Line:
    name = f"{figures.name} on {figures.mountpoint}" if figures.mountpoint else figures.name
    clock = time.strftime("%H:%M:%S", time.localtime(figures.at_s))
    right = f"{'PAUSED' if view.is_paused else f'every {view.interval_s:g} s'}  {clock} "
    left = Line().add(f" {name}").fitted(max(0, view.width - len(right) - 1))
    space = " " * max(1, view.width - left.width - len(right))
    return Line().add(f"{left.text}{space}{right}", Style.TITLE)


def _heading(figures: Figures, view: View) -> list[Line]:
    lines = []
    limit = 3 if view.height is None or view.height >= 30 else 2
    if figures.trouble:
        text = f"DAEMON AWAY: {figures.trouble}"
        lines += paragraph(text, view.width, Style.ALARM, limit=2)
        lines += paragraph(_describe_absence(figures), view.width, limit=2)
    document = figures.document
    if document is None:
        if not figures.trouble:
            lines += paragraph(f"{figures.name}: waiting for the daemon's answer", view.width, limit=1)
        return lines
    lines += paragraph(_describe_log(figures, document), view.width, limit=limit)
    if (view.height is None or view.height >= 30) and not figures.trouble:
        lines += paragraph(describe_pressure(document), view.width, limit=2)
    return lines


def _describe_absence(figures: Figures) -> str:
    if not figures.disks:
        return "No disks are shown: they are known from a daemon or a configuration only; name its FILE."
    return "Used and segments are read from the directories of the disks."


def _describe_log(figures: Figures, document: dict[str, Any]) -> str:
    text = describe_log(document)
    oldest = document.get("oldest_message")  # a daemon of a former version does not report it
    if oldest is not None:
        text += f" Oldest message: {approximate_duration(max(0.0, figures.at_s - oldest))} old."
    following = document["placement"]["next_disk"]
    number = next((disk.number for disk in figures.disks if disk.path == following), None)
    text += " No disk takes the next segment." if number is None else f" Next segment: disk {number}."
    age = figures.age_s or 0.0
    return f"{text} Figures {'less than 1 s' if age < 1 else approximate_duration(age)} old."


def _alerts(figures: Figures) -> list[dict[str, Any]]:
    document = figures.document
    if document is None:
        return []
    if "alerts" in document:
        alerts: list[dict[str, Any]] = document["alerts"]
        return alerts
    # A daemon of a former version reports only these, without remedies.
    alerts = list(document["retention"]["alerts"])
    if document["degraded"]:
        alerts.insert(0, {"code": "degraded", "disk": None, "text": describe_degraded(document)})
    return alerts


def _alert_lines(alert: dict[str, Any], width: int) -> list[Line]:
    """The alert and its remedy."""
    is_urgent = alert.get("urgency", "now") == "now"
    where = f"{alert['disk']}: " if alert["disk"] else ""
    remedy = f" -> {alert['remedy']}" if alert.get("remedy") else ""
    text = f"{'ALERT' if is_urgent else 'alert'} {alert['code']}: {where}{alert['text']}{remedy}"
    return paragraph(text, width, Style.ALARM if is_urgent else Style.ATTENTION, limit=_ALERT_LINES, indent="  ")


def _limited(alerts: list[list[Line]], limit: int) -> list[Line]:
    """As many whole alerts as fit, and the number of the others."""
    lines: list[Line] = []
    for index, alert in enumerate(alerts):
        is_last = index == len(alerts) - 1
        if len(lines) + len(alert) + (not is_last) > limit:
            more = count_of(len(alerts) - index, "alert" if index == 0 else "more alert")
            rest = Line().add(f"{more}: `commitlogfs status` shows them", Style.ALARM)
            if not lines and limit > 1:
                return [*alert[: limit - (not is_last)], *([] if is_last else [rest])]
            return [*lines, rest][:limit]
        lines += alert
    return lines


def _errors(figures: Figures) -> Iterator[str]:
    """One text for each disk whose directory cannot be read."""
    for disk in figures.disks:
        if disk.directory is not None and disk.directory.error:
            yield f"Disk {disk.number} ({disk.path}): {disk.directory.error}."


def _jobs(document: dict[str, Any] | None) -> Iterator[str]:
    """One text for each job that runs, and for each disk that an operator has released."""
    if document is None:
        return
    for disk in document["disks"]:
        if disk.get("drain") is not None:
            yield f"Disk {disk['number']} ({disk['path']}): {describe_drain(disk)}."
    moves = document.get("moves") or {}
    current = moves.get("current")
    if current is not None:
        share = f"{100 * current['done_bytes'] / current['size']:.0f} %" if current["size"] else "0 %"
        origin = f" from {current['from']}" if current["from"] else ""
        rate = f", {approximate_size(moves['bytes_per_second'])}/s" if moves.get("bytes_per_second") else ""
        yield f"Move of {current['segment']}{origin} to {current['to']}: {current['phase']} {share}{rate}."
    if document.get("rebalance") is not None:
        yield describe_rebalance(document["rebalance"])
    if (document.get("scrub") or {}).get("state") in ("running", "paused"):
        yield describe_summary(document)
    for released in document.get("offline_disks", ()):
        yield describe_offline(released)


def _decisions(figures: Figures) -> Iterator[Line]:
    """The latest decisions of the daemon, newest first."""
    for decision in figures.decisions:
        clock = time.strftime("%H:%M:%S", time.localtime(decision["at"]))
        yield Line().add(f"{clock}  ", Style.DIM).add(decision["text"])


def _below(jobs: list[Line], decisions: list[Line], room: int) -> list[Line]:
    """Jobs and decisions, in at most `room` lines."""
    lines: list[Line] = []
    if jobs and room:
        if room > len(jobs):
            lines.append(Line())
        lines += jobs[: room - len(lines)]
    if decisions and room - len(lines) >= 3:
        lines += [Line(), Line().add("Latest decisions (`commitlogfs explain` shows more)", Style.HEADING)]
        lines += decisions[: room - len(lines)]
    return lines


def _keys(figures: Figures, view: View, first: int = 0, rows: int = 0) -> Line:
    parts = ["q quit", "p continue" if view.is_paused else "p pause", f"s sort: {view.sort}", "? help"]
    hidden = len(figures.disks) - rows
    if rows and hidden:
        parts.append(f"j/k scroll: disks {first + 1}-{first + rows} of {len(figures.disks)}")
    return Line().add("  ".join(parts), Style.DIM)
