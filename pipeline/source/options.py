"""The options of `format("commitlog")`: parsed and checked on the driver, before any task starts. Pure."""

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeVar

from commitlogfs.pipeline.bodies.body_options import AS_STORED, DEFAULT_LIMIT, LARGEST_LIMIT, BodyOptions
from commitlogfs.pipeline.log.errors import OptionError
from commitlogfs.pipeline.source.group_keys import GroupKey, parse_keys
from commitlogfs.store.segment import LARGEST_OFFSET

_Value = TypeVar("_Value")

_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"([0-9]{1,18})([bkmgt]?)(?:i?b)?", re.IGNORECASE)


class Edge(Enum):
    """An end of the log, whose offset is only known after a search."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of one query. Picklable; nothing in it depends on the log's content."""

    path: str
    segment_size: int | None = None
    """None: the size of the largest file."""
    topics: frozenset[str] | None = None
    """None: all."""
    topic_pattern: str | None = None
    """Regular expression for the whole name."""
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
    """None: depends on the size of the log."""
    include_system_topics: bool = False
    include_half_messages: bool = False
    permissive: bool = False
    check_crc: bool = True
    bodies: BodyOptions = AS_STORED
    aggregate: tuple[GroupKey, ...] = ()
    """Keys; empty: a row for each message."""


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
    "decompress",
    "maxBodySize",
    "unfold",
    "aggregate",
)
_SPARKS_OWN: Final = ("paths",)
"""`load([one, other])` passes the paths under this name, as JSON."""
_EXCLUDING: Final = (
    ("topic", "topicPattern"),
    ("startingOffsets", "startingTimestamp"),
    ("endingOffsets", "endingTimestamp"),
    ("aggregate", "decompress"),
    ("aggregate", "maxBodySize"),
    ("aggregate", "unfold"),
)
_DEFAULT_END: Final[Edge | int] = Edge.LATEST
_STREAM_ONLY: Final = ("maxBytesPerTrigger", "maxOffsetsPerTrigger")
_BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "aggregate")


def parse_options(given: Mapping[str, str], *, streaming: bool | None = None) -> ReadOptions:
    """The options of a query; names are not case-sensitive. `streaming`: None if it is not yet known.

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
        bodies=BodyOptions(
            decompress=options.value("decompress", _flag, False),
            unfold=options.value("unfold", _flag, False),
            limit=options.value("maxBodySize", _body_size, DEFAULT_LIMIT),
        ),
        aggregate=options.value("aggregate", parse_keys, ()),
    )


class _Options:
    """The given options under their canonical names."""

    def __init__(self, given: Mapping[str, str]) -> None:
        canonical = {name.lower(): name for name in (*OPTION_NAMES, *_SPARKS_OWN)}
        self._values: dict[str, str] = {}
        for key, value in given.items():
            name = canonical.get(key.lower())
            if name is None:
                raise OptionError(f"option {key} is unknown; {_suggest(key, canonical)}")
            self._values[name] = value

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str, parse: Callable[[str], _Value]) -> _Value | None:
        """The parsed option; None if it is not given. `parse` raises ValueError with the rule that is broken."""
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
        return f"did you mean {canonical[close[0]]}?"
    return f"the options are {', '.join(OPTION_NAMES)}"


def _refuse_combinations(options: _Options, streaming: bool | None) -> None:
    for one, other in _EXCLUDING:
        if one in options and other in options:
            raise OptionError(f"options {one} and {other} exclude each other; give one of them")
    wrong, kind = (_BATCH_ONLY, "a stream") if streaming else (_STREAM_ONLY, "a batch")
    for name in wrong if streaming is not None else ():
        if name in options:
            raise OptionError(f"option {name} is not for {kind}; leave it out")


def _default_start(options: _Options, streaming: bool | None) -> Edge | int:
    return Edge.LATEST if streaming and "startingTimestamp" not in options else Edge.EARLIEST


def _path(options: _Options) -> str:
    several = options.get("paths", _paths)
    path = several or options.get("path", str)
    if not path:
        raise OptionError(
            "no path: load() the commitlog directory, a comma list of disk directories, or a URI such as "
            "s3://bucket/log"
        )
    return path


# --- values: each function raises ValueError with the rule that the text breaks --------------------------


def _paths(text: str) -> str:
    return ",".join(str(one) for one in json.loads(text))


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return text.lower() == "true"


def _mode(text: str) -> bool:
    if text.upper() not in ("FAILFAST", "PERMISSIVE"):
        raise ValueError("must be FAILFAST or PERMISSIVE")
    return text.upper() == "PERMISSIVE"


def _whole(text: str, rule: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19) or int(text) > LARGEST_OFFSET:
        raise ValueError(f"must be {rule}")
    return int(text)


def _positive(text: str) -> int:
    value = _whole(text, "a whole number above 0")
    if not value:
        raise ValueError("must be a whole number above 0")
    return value


def _positive_size(text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None or not int(match[1]):
        raise ValueError("must be a number of bytes above 0, such as 1073741824 or 1g")
    return int(match[1]) * _UNITS[match[2].lower()]


def _body_size(text: str) -> int:
    size = _positive_size(text)
    if size > LARGEST_LIMIT:
        raise ValueError("must be at most 1g")
    return size


def _milliseconds(text: str) -> int:
    return _whole(text, "a whole number of milliseconds since 1970")


def _edge(text: str) -> Edge | int:
    if text.lower() in ("earliest", "latest"):
        return Edge(text.lower())
    return _whole(text, "earliest, latest or a log offset")


def _ending(text: str) -> Edge | int:
    if text.lower() == "earliest":
        raise ValueError("must be latest or a log offset: no message lies before earliest")
    return _edge(text)


def _list(text: str) -> Iterable[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ValueError("must be a comma list without empty items")
    return parts


def _names(text: str) -> frozenset[str]:
    return frozenset(_list(text))


def _queue_ids(text: str) -> frozenset[int]:
    return frozenset(_whole(part, "a comma list of whole numbers") for part in _list(text))


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"is not a regular expression ({error})") from None
    return text
