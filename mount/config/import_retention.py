"""The [retention] table from a broker.conf.

The written mode is "cooperative", as there is a broker. In this mode the broker expires segments by age, so its
fileReservedTime and deleteWhen become comments, to be used as keys in mode "filesystem".
"""

import re
import time
from typing import Final

import tomlkit
from tomlkit.items import Table

from commitlogfs.console.units import format_duration_ms
from commitlogfs.mount.config.retention import (
    LONGEST_INTERVAL_MS,
    SHORTEST_INTERVAL_MS,
    SHORTEST_RESERVED_MS,
    format_hours,
)
from commitlogfs.store.broker_conf import BrokerConf
from commitlogfs.store.retention import RetentionRules
from commitlogfs.store.timing import DEFAULT

_RESERVED: Final = "fileReservedTime"
_DELETE_WHEN: Final = "deleteWhen"
_BATCH: Final = "deleteFileBatchMax"
_PAUSE: Final = "deleteCommitLogFilesInterval"
_GRACE: Final = "destroyMapedFileIntervalForcibly"
_INTERVAL: Final = "cleanResourceInterval"
_FORCIBLY: Final = "cleanFileForciblyEnable"
_REPLICAS: Final = "replicasPerDiskPartition"
RETENTION_KEYS: Final = (_RESERVED, _DELETE_WHEN, _BATCH, _PAUSE, _GRACE, _INTERVAL, _FORCIBLY, _REPLICAS)
_FORCIBLY_RATIO: Final = "diskSpaceCleanForciblyRatio"

_DEFAULT_RESERVED_HOURS: Final = 72
_SHORTEST_RESERVED_HOURS: Final = SHORTEST_RESERVED_MS // 3_600_000
_DEFAULT_DELETE_WHEN: Final = "04"


def read_retention(broker: BrokerConf) -> Table:
    """The table to write. Values that the broker or commitlogfs changes become warnings."""
    table = tomlkit.table()
    if not broker.boolean(_FORCIBLY, default=True):
        broker.warn(
            f"{_FORCIBLY} is false: the broker deletes nothing by force, but the filesystem will, once the disks "
            f"have been above thresholds.force for {RetentionRules().force_after_s:g} s (retention.force_after); "
            'set retention.mode = "off" to prevent that'
        )
        table.add(tomlkit.comment(f'mode = "off"  # as {_FORCIBLY} = false: nothing is ever deleted by force'))
    _add_batch(broker, table)
    _add_grace(broker, table)
    _add_interval(broker, table)
    pause_ms, always_ms = broker.integer(_PAUSE, 100), round(DEFAULT.retention.pause_s * 1000)
    if pause_ms is not None and pause_ms != always_ms:
        broker.warn(f"{_PAUSE} = {pause_ms} has no counterpart: the filesystem always waits {always_ms} ms")
    replicas = broker.integer(_REPLICAS, 1)
    if replicas is not None and replicas > 1:
        broker.warn(
            f"{_REPLICAS} = {replicas}: below {_FORCIBLY_RATIO} such a broker decides by the size of its own "
            "files, not by the fill level of the disks, so statfs has less influence on it"
        )
    table.add(
        tomlkit.comment("The broker expires segments by age. For a log without a live broker, remove the # below.")
    )
    table.add(tomlkit.comment('mode = "filesystem"'))
    table.add(tomlkit.comment(_reserved(broker)))
    table.add(tomlkit.comment(_delete_when(broker)))
    table.add(tomlkit.nl())
    return table


def _add_batch(broker: BrokerConf, table: Table) -> None:
    batch = broker.integer(_BATCH, 10)
    if batch is None:
        return
    if batch < 1:
        broker.warn(f"{_BATCH} = {batch}: the broker deletes one segment per run; the new configuration gets 1")
    table.add("batch", tomlkit.integer(max(1, batch)).comment(_BATCH))


def _add_grace(broker: BrokerConf, table: Table) -> None:
    grace_ms = broker.integer(_GRACE, 120_000)
    if grace_ms is None:
        return
    if grace_ms < 0:
        broker.warn(
            f"{_GRACE} = {grace_ms} is negative, which the broker treats as 0; the new configuration gets 0s"
        )
    table.add("grace", tomlkit.string(format_duration_ms(max(0, grace_ms))).comment(_GRACE))


def _add_interval(broker: BrokerConf, table: Table) -> None:
    interval_ms = broker.integer(_INTERVAL, 10_000)
    if interval_ms is None:
        return
    if interval_ms <= 0:
        broker.warn(f"{_INTERVAL} = {interval_ms}: a broker does not start with this value; it is left out")
        return
    bounded_ms = min(max(interval_ms, SHORTEST_INTERVAL_MS), LONGEST_INTERVAL_MS)
    text = format_duration_ms(bounded_ms)
    if bounded_ms != interval_ms:
        shortest, longest = format_duration_ms(SHORTEST_INTERVAL_MS), format_duration_ms(LONGEST_INTERVAL_MS)
        broker.warn(
            f"{_INTERVAL} = {interval_ms} ms is outside {shortest} to {longest}, the filesystem's own limits: "
            f"the new configuration gets {text}"
        )
    table.add("interval", tomlkit.string(text).comment(_INTERVAL))


# --- settings that only the broker uses: comments -------------------------------------------------------


def _reserved(broker: BrokerConf) -> str:
    hours = broker.integer(_RESERVED, _DEFAULT_RESERVED_HOURS)
    if hours is None:
        return f'reserved = "{_DEFAULT_RESERVED_HOURS}h"  # {_RESERVED} (its default)'
    if hours < _SHORTEST_RESERVED_HOURS:
        broker.warn(f"{_RESERVED} = {hours}: for the broker every segment except the newest is expired at once")
        return f'reserved = "{_SHORTEST_RESERVED_HOURS}h"  # the smallest value; {_RESERVED} = {hours}'
    if hours * 3600 > time.time():
        broker.warn(
            f"{_RESERVED} = {hours} reaches back before 1970: for the broker nothing expires, so it keeps segments "
            "open that the filesystem has removed, until it deletes by force itself"
        )
    return f'reserved = "{hours}h"  # {_RESERVED}'


def _delete_when(broker: BrokerConf) -> str:
    text = broker.raw_text(_DELETE_WHEN, _DEFAULT_DELETE_WHEN)
    hours = _hours(broker, text)
    if not hours:
        return f'delete_when = "{_DEFAULT_DELETE_WHEN}"  # the default; {_DELETE_WHEN} names no hour'
    origin = "" if _DELETE_WHEN in broker.properties else " (its default)"
    return f'delete_when = "{format_hours(hours)}"  # {_DELETE_WHEN}{origin}'


def _hours(broker: BrokerConf, text: str) -> frozenset[int]:
    """The hours at which the broker deletes. At every run it parses items one by one until one is the present hour
    (UtilAll#isItTimeToDo)."""
    found = set()
    for item in _split_as_java(text):
        if re.fullmatch(r"[+-]?[0-9]+", item) is None or not -(2**31) <= int(item) < 2**31:
            broker.warn(
                f"{_DELETE_WHEN} = {text!r}: unless an earlier item is the present hour, the broker fails at "
                f"{item!r} and deletes nothing, not even by force; write hours such as 04;16"
            )
            break
        if 0 <= int(item) <= 23:
            found.add(int(item))
        else:
            broker.warn(f"{_DELETE_WHEN} = {text!r}: hour {item} does not exist, so the broker ignores it")
    else:
        if not found:
            broker.warn(f"{_DELETE_WHEN} = {text!r} names no hour, so the broker deletes for lack of space only")
    return frozenset(found)


def _split_as_java(text: str) -> list[str]:
    """Items of `text` as Java's String#split gives them: without empty ones at the end, and "" as one item."""
    items = text.split(";")
    while text and items and not items[-1]:
        items.pop()
    return items
