"""The finding about a damaged segment. Pure."""

from typing import Final

from commitlogfs.store.findings import Finding, FindingCode, Severity
from commitlogfs.store.scrub.verdict import Kind, Message, Verdict
from commitlogfs.store.segment import BaseOffset, format_segment_name

_WORDS: Final = {
    Kind.ROTTED: "has changed since it was sealed, and damaged messages",
    Kind.WRITTEN_BROKEN: "was written broken, or has been damaged before it had a checksum",
    Kind.HEADER_OR_PADDING: "has changed since it was sealed, where RocketMQ has no checksum (properties, hosts, "
    "flags, times, or padding), or in its blank record; all message bodies are right",
    Kind.UNREADABLE: "could not be read completely",
    Kind.WRITE_LOST: "lacks what the broker has written, which reads show only as long as it is in memory",
    Kind.UNKNOWN: "has a record of damage that cannot be read (damaged itself, or of a newer version)",
}
_REMEDY: Final = (
    "while mounted, `commitlogfs restore --from DIRECTORY` repairs it from a slave or a backup; until then, a read "
    "returns the content of its disk; `commitlogfs scrub clear` only removes the verdict "
    "(docs/runbooks/damaged-segment.md)"
)
_UNRECORDED: Final = "; its disk has not recorded that, so the next daemon has to find it again"
_RANGES_SHOWN: Final = 4
_MESSAGES_SHOWN: Final = 4


def damage_finding(disk: str, base_offset: BaseOffset, verdict: Verdict, *, is_recorded: bool = True) -> Finding:
    """`disk` is the path of the disk that has the segment. `is_recorded`: its file records the verdict."""
    name = format_segment_name(base_offset).decode()
    text = _describe(base_offset, verdict) + ("" if is_recorded else _UNRECORDED)
    return Finding(FindingCode.DAMAGED_SEGMENT, Severity.WARNING, disk, name, text, _REMEDY)


def unread_finding(disk: str, name: bytes, count: int) -> Finding:
    """The disk cannot read the records of damage of `count` segments, of which `name` is one."""
    others = f", as of {count - 1:,} more segments of this disk" if count > 1 else ""
    text = f"cannot be asked whether a scrub or a move has found it damaged{others}"
    remedy = "see `dmesg`; a mount asks the disk again until it answers"
    return Finding(FindingCode.DAMAGED_SEGMENT, Severity.WARNING, disk, name.decode(), text, remedy)


def _describe(base: int, verdict: Verdict) -> str:
    text = _WORDS[verdict.kind]
    if not verdict.is_located:
        return f"{text}; where in the segment is not known"
    ranges = [f"{base + begin} to {base + end}" for begin, end in verdict.ranges[:_RANGES_SHOWN]]
    text += f"; log offsets {', '.join(ranges)}" + _more(len(verdict.ranges) - _RANGES_SHOWN)
    shown = verdict.messages[:_MESSAGES_SHOWN]
    if shown:
        text += f"; messages: {', '.join(map(_describe_message, shown))}" + _more(
            verdict.message_count - len(shown)
        )
    return text


def _describe_message(message: Message) -> str:
    return f"{message.topic or 'unknown topic'} queue {message.queue_id} offset {message.queue_offset}"


def _more(count: int) -> str:
    return f" and {count:,} more" if count > 0 else ""
