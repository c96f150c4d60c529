"""What may be said to `format("commitlog")`: parsed and refused on the driver, before any task starts. Pure."""

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeVar

from commitlogfs.pipeline.log.errors import OptionError
from commitlogfs.store.segment import LARGEST_OFFSET

_Value = TypeVar("_Value")

_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"([0-9]{1,18})([bkmgt]?)(?:i?b)?", re.IGNORECASE)


class Edge(Enum):
    """A place in the log that is only known by looking at it."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What one query wants of the log. Picklable; nothing in it was looked up anywhere."""

    path: str
    segment_size: int | None = None
    """None: that of the files."""
    topics: frozenset[str] | None = None
    """None: all."""
    topic_pattern: str | None = None
    """Of the whole name."""
    queue_ids: frozenset[int] | None = None
    start: Edge | int = Edge.EARLIEST
    end: Edge | int = Edge.LATEST
    start_ms: int | None = None
    """Store times in [start_ms, end_ms)."""
    end_ms: int | None = None
    fail_on_data_loss: bool = True
    max_bytes_per_trigger: int | None = None
    max_offsets_per_trigger: int | None = None
    min_partitions: int | None = None
    split_size: int | None = None
    """None: as suits the log."""
    include_system_topics: bool = False
    include_half_messages: bool = False
    permissive: bool = False
    check_crc: bool = True


OPTION_NAMES: Final = (
    "path",
    "segmentSize",
    "topic",
    "topicPattern",
    "queueId",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "maxBytesPerTrigger",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "splitSize",
    "includeSystemTopics",
    "includeHalfMessages",
    "mode",
    "checkCrc",
)
_SPARKS_OWN: Final = ("paths",)
"""`load([one, other])` arrives under this name, as JSON."""
_EXCLUDING: Final = (
    ("topic", "topicPattern"),
    ("startingOffsets", "startingTimestamp"),
    ("endingOffsets", "endingTimestamp"),
)
_DEFAULT_END: Final[Edge | int] = Edge.LATEST
_STREAM_ONLY: Final = ("maxBytesPerTrigger", "maxOffsetsPerTrigger")
_BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp")


def parse_options(given: Mapping[str, str], *, streaming: bool | None = None) -> ReadOptions:
    """The options of a query, by name whatever its case. `streaming`: None while it is not yet known.

    Raises OptionError, one line that names the option.
    """
    options = _Options(given)
    _refuse_combinations(options, streaming)
    return ReadOptions(
        path=_path(options),
        segment_size=options.get("segmentSize", _positive_size),
        topics=options.get("topic", _names),
        topic_pattern=options.get("topicPattern", _pattern),
        queue_ids=options.get("queueId", _queue_ids),
        start=options.value("startingOffsets", _edge, _default_start(options, streaming)),
        end=options.value("endingOffsets", _ending, _DEFAULT_END),
        start_ms=options.get("startingTimestamp", _milliseconds),
        end_ms=options.get("endingTimestamp", _milliseconds),
        fail_on_data_loss=options.value("failOnDataLoss", _flag, True),
        max_bytes_per_trigger=options.get("maxBytesPerTrigger", _positive_size),
        max_offsets_per_trigger=options.get("maxOffsetsPerTrigger", _positive),
        min_partitions=options.get("minPartitions", _positive),
        split_size=options.get("splitSize", _positive_size),
        include_system_topics=options.value("includeSystemTopics", _flag, False),
        include_half_messages=options.value("includeHalfMessages", _flag, False),
        permissive=options.value("mode", _mode, False),
        check_crc=options.value("checkCrc", _flag, True),
    )


class _Options:
    """The given options under their own names."""

    def __init__(self, given: Mapping[str, str]) -> None:
        canonical = {name.lower(): name for name in (*OPTION_NAMES, *_SPARKS_OWN)}
        self._values: dict[str, str] = {}
        for key, value in given.items():
            name = canonical.get(key.lower())
            if name is None:
                raise OptionError(f"no option {key}{_suggest(key, canonical)}")
            self._values[name] = value

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str, parse: Callable[[str], _Value]) -> _Value | None:
        """`parse` of the option's text; None where it is not given. `parse` raises ValueError: what it wants."""
        if name not in self._values:
            return None
        text = self._values[name].strip()
        try:
            return parse(text)
        except ValueError as error:
            raise OptionError(f"option {name} = {text!r}: {error}") from None

    def value(self, name: str, parse: Callable[[str], _Value], default: _Value) -> _Value:
        value = self.get(name, parse)
        return default if value is None else value


def _suggest(key: str, canonical: Mapping[str, str]) -> str:
    close = difflib.get_close_matches(key.lower(), canonical, n=1)
    if close:
        return f": did you mean {canonical[close[0]]}?"
    return f": there are {', '.join(OPTION_NAMES)}"


def _refuse_combinations(options: _Options, streaming: bool | None) -> None:
    for one, other in _EXCLUDING:
        if one in options and other in options:
            raise OptionError(f"options {one} and {other} exclude each other: give one of them")
    wrong, kind = (_BATCH_ONLY, "a stream, which has no end") if streaming else (_STREAM_ONLY, "a batch")
    for name in wrong if streaming is not None else ():
        if name in options:
            raise OptionError(f"option {name} means nothing to {kind}: leave it out")


def _default_start(options: _Options, streaming: bool | None) -> Edge | int:
    return Edge.LATEST if streaming and "startingTimestamp" not in options else Edge.EARLIEST


def _path(options: _Options) -> str:
    several = options.get("paths", _paths)
    path = several or options.get("path", str)
    if not path:
        raise OptionError(
            "no path: load() the commitlog folder, a comma list of disk folders, or a URI such as s3://bucket/log"
        )
    return path


# --- values: each raises ValueError with what it wants ---------------------------------------------------


def _paths(text: str) -> str:
    return ",".join(str(one) for one in json.loads(text))


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false is wanted")
    return text.lower() == "true"


def _mode(text: str) -> bool:
    if text.upper() not in ("FAILFAST", "PERMISSIVE"):
        raise ValueError("FAILFAST or PERMISSIVE is wanted")
    return text.upper() == "PERMISSIVE"


def _whole(text: str, wanted: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19) or int(text) > LARGEST_OFFSET:
        raise ValueError(f"{wanted} is wanted")
    return int(text)


def _positive(text: str) -> int:
    value = _whole(text, "a whole number above 0")
    if not value:
        raise ValueError("a whole number above 0 is wanted")
    return value


def _positive_size(text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None or not int(match[1]):
        raise ValueError("a number of bytes above 0 is wanted, such as 1073741824 or 1g")
    return int(match[1]) * _UNITS[match[2].lower()]


def _milliseconds(text: str) -> int:
    return _whole(text, "milliseconds since 1970, a whole number,")


def _edge(text: str) -> Edge | int:
    if text.lower() in ("earliest", "latest"):
        return Edge(text.lower())
    return _whole(text, "earliest, latest or a log offset")


def _ending(text: str) -> Edge | int:
    if text.lower() == "earliest":
        raise ValueError("latest or a log offset is wanted: nothing lies before earliest")
    return _edge(text)


def _list(text: str) -> Iterable[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ValueError("a comma list without empty places is wanted")
    return parts


def _names(text: str) -> frozenset[str]:
    return frozenset(_list(text))


def _queue_ids(text: str) -> frozenset[int]:
    return frozenset(_whole(part, "a comma list of whole numbers") for part in _list(text))


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression ({error})") from None
    return text
