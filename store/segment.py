"""Segment names: the only place that parses or formats them.

A segment is one fixed-size file of the log (RocketMQ's MappedFile). Its name is the log offset of its first byte in
20 decimal digits (RocketMQ UtilAll#offset2FileName; ASCII digits only, see docs/decisions.md).
"""

import re
from enum import Enum
from typing import NewType

from commitlogfs.store.printable import printable

BaseOffset = NewType("BaseOffset", int)
LogOffset = NewType("LogOffset", int)

NAME_DIGITS = 20
LARGEST_OFFSET = 2**63 - 1
"""RocketMQ keeps log offsets in a signed 64-bit long."""

_SEGMENT_NAME = re.compile(rb"[0-9]{20}")
_TEMPORARY_NAME = re.compile(rb"\.([0-9]{20})\.[A-Za-z0-9_-]{1,32}")


class SegmentState(Enum):
    """State of a segment (docs/terminology.md)."""

    PREALLOCATED = "preallocated"
    ACTIVE = "active"
    SEALED = "sealed"


def parse_segment_name(name: bytes, segment_size: int) -> BaseOffset | None:
    """Base offset of the segment `name`, or None if it is not the name of a segment of this size.

    A segment's name is 20 ASCII digits, a multiple of `segment_size`, and its last byte has an offset
    that fits RocketMQ's signed 64-bit long.
    """
    if _SEGMENT_NAME.fullmatch(name) is None:
        return None
    offset = int(name)
    if offset % segment_size or offset > LARGEST_OFFSET - segment_size:
        return None
    return BaseOffset(offset)


def format_segment_name(base_offset: int) -> bytes:
    return b"%020d" % base_offset


def parse_temporary_name(name: bytes, segment_size: int) -> BaseOffset | None:
    """Base offset of the segment to which the temporary `.NAME.suffix` will be renamed, or None for other names."""
    match = _TEMPORARY_NAME.fullmatch(name)
    return None if match is None else parse_segment_name(match[1], segment_size)


def show_name(name: bytes) -> str:
    """The file name as text that is safe on a terminal: nothing in it can end a line or control the terminal."""
    return printable(name.decode(errors="backslashreplace"))


def looks_like_segment(name: bytes) -> bool:
    """Whether a RocketMQ broker would take the file for a segment: 20 digits, whatever the offset."""
    return _SEGMENT_NAME.fullmatch(name) is not None
