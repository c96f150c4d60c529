"""A scrub, and the damaged segments, as sentences. Pure."""

from typing import Any

from commitlogfs.console.formatting import approximate_duration, approximate_size, count_of, local_minute
from commitlogfs.console.units import format_size


def describe_scrub(scrub: dict[str, Any]) -> str:
    """State of the scrub, and its next step."""
    return f"Scrub: {_describe_state(scrub)}. {_describe_next(scrub)}"


def describe_summary(document: dict[str, Any]) -> str:
    """The scrub as one sentence of `status`; empty if there is nothing to say."""
    scrub = document.get("scrub")  # a daemon of a former version does not report it
    if scrub is None:
        return ""
    parts = [describe_unknown(scrub), describe_set_aside(scrub)]
    if scrub["state"] != "none" or scrub["damaged"]:
        parts.insert(0, describe_scrub(scrub))
    return " ".join(filter(None, parts))


def describe_unknown(scrub: dict[str, Any]) -> str:
    """The disks of which it is not known yet whether segments are damaged as one sentence; empty if there is
    none."""
    disks = scrub.get("unknown", ())  # a daemon of a former version does not report them
    return f"Damaged segments: not known yet of {', '.join(disks)}, which still have to answer." if disks else ""


def describe_set_aside(scrub: dict[str, Any]) -> str:
    """The damaged files of repaired segments as one sentence; empty if there is none."""
    files = scrub.get("set_aside", ())  # a daemon of a former version does not report them
    if not files:
        return ""
    size = approximate_size(sum(file["bytes"] for file in files))
    return (
        f"Set aside: {count_of(len(files), 'damaged file')} of repaired segments ({size}), until "
        "`commitlogfs scrub clear`, or until the segments have left the log. A broker that has run since "
        "before the repair reads the damaged files until its restart."
    )


def describe_file_aside(file: dict[str, Any]) -> str:
    """One of these files."""
    kind = "" if file["kind"] is None else f"{file['kind']}, "
    return f"{file['path']}: {kind}repaired; the damaged file is set aside ({approximate_size(file['bytes'])})"


def describe_disks(scrub: dict[str, Any]) -> list[str]:
    """One line for each disk, of a scrub under way."""
    return [_describe_disk(disk) for disk in scrub["disks"]]


def describe_start(answer: dict[str, Any], *, dry_run: bool) -> str:
    """Result of a start, or of its dry run."""
    limit = _limit(answer["rate"])
    if answer["running"]:
        if not answer["changed"]:
            return "the scrub is under way already"
        verb = "would read" if dry_run else "now reads"
        by_hand = (
            ", outside of its window, too: it is one by hand from now on" if answer.get("was_scheduled") else ""
        )
        return f"the scrub {verb} {limit}{by_hand}"
    size = f"{count_of(answer['segments'], 'segment')} ({approximate_size(answer['bytes'])})"
    verb = "would read" if dry_run else "reads"
    return f"the scrub {verb} {size}, {limit}"


def describe_damaged(damaged: dict[str, Any]) -> list[str]:
    """A damaged segment: what it is, and its messages."""
    since = local_minute(damaged["since"])
    head = f"{damaged['disk']}/{damaged['segment']}: {damaged['kind']}, found {since}"
    ranges = ", ".join(f"{begin:,} to {end:,}" for begin, end in damaged["ranges"])
    where = "log offsets" if damaged["located"] else "somewhere in log offsets"
    lines = [f"{head}; {where} {ranges}"]
    if not damaged.get("recorded", True):  # a daemon of a former version does not report it
        lines.append("    not recorded by its disk: another daemon has to find it again")
    for message in damaged["messages"]:
        topic = message["topic"] or "unknown topic"
        queue = f"queue {message['queue_id']} offset {message['queue_offset']:,}"
        lines.append(f"    {topic} {queue}, at log offset {message['log_offset']:,}")
    left = damaged["message_count"] - len(damaged["messages"])
    if left > 0:
        lines.append(f"    and {count_of(left, 'more damaged message')}")
    return lines


def describe_unread(scrub: dict[str, Any]) -> str:
    """Segments and disks that the scrub could not read; empty if there are none."""
    unread = [disk for disk in scrub["disks"] if disk.get("unread")]  # a daemon of a former version has no such key
    counts = [f"{count_of(disk['unread'], 'segment')} of {disk['path']} (see the log)" for disk in unread]
    disks = [f"{path} (not served)" for path in scrub.get("unread_disks", ())]  # the same
    return f"not read: {', '.join(counts + disks)}" if counts or disks else ""


def _describe_state(scrub: dict[str, Any]) -> str:
    state = scrub["state"]
    if state == "none":
        return "none has run yet"
    since = local_minute(scrub["since"])
    if state in ("done", "cancelled"):
        text = f"the one of {since} has ended" if state == "done" else f"the one of {since} was cancelled"
        return f"{text}{_unread(scrub)}"
    done, left = approximate_size(scrub["done_bytes"]), approximate_size(scrub["left_bytes"])
    text = f"since {since}, {done} done, {left} left, {_limit(scrub['rate'])}"
    if state == "paused":
        return f"{text}; paused: `commitlogfs scrub resume` continues it"
    if scrub["eta_seconds"] is not None:
        text += f", {approximate_duration(scrub['eta_seconds'])} to go"
    waiting = [f"{disk['path']} ({disk['waits_for']})" for disk in scrub["disks"] if disk["waits_for"]]
    return f"{text}; waits: {', '.join(waiting)}{_unread(scrub)}" if waiting else f"{text}{_unread(scrub)}"


def _unread(scrub: dict[str, Any]) -> str:
    unread = describe_unread(scrub)
    return f"; {unread}" if unread else ""


def _describe_next(scrub: dict[str, Any]) -> str:
    completed = scrub["completed"]
    if scrub.get("unread_disks"):
        text = "None is complete without all disks"
    else:
        text = "No complete scrub yet" if completed is None else f"Last complete one: {local_minute(completed)}"
    if scrub["state"] in ("running", "paused"):
        return f"{text}."
    if scrub["next"] is None:
        return f"{text}; `commitlogfs scrub start` begins the next one."
    return f"{text}; the next one begins {local_minute(scrub['next'])} or later."


def _describe_disk(disk: dict[str, Any]) -> str:
    text = f"{disk['number']}  {disk['path']}  {approximate_size(disk['done_bytes'])} done"
    if disk["ended"]:
        return f"{text}, ended" + (
            f", {count_of(disk['unread'], 'segment')} not read" if disk.get("unread") else ""
        )
    text += f", {approximate_size(disk['left_bytes'])} left"
    if disk["waits_for"]:
        return f"{text}, waits: {disk['waits_for']}"
    if disk["bytes_per_second"]:
        text += f", {approximate_size(disk['bytes_per_second'])}/s"
    if disk["eta_seconds"] is not None:
        text += f", {approximate_duration(disk['eta_seconds'])} to go"
    return text


def _limit(rate: int | None) -> str:
    return "at the default rate" if rate is None else f"at most {format_size(rate)}/s on each disk"
