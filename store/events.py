"""Log events: a stable name and fields, kept apart until the one who writes them formats the line.

The standard logging module carries them, so a library user sees ordinary records.
"""

import logging
from collections.abc import Hashable

_IDENTITY_FIELDS = ("disk", "segment", "op", "errno", "name", "path", "reason")


def log_event(
    logger: logging.Logger,
    level: int,
    event: str,
    *,
    repeat_key: Hashable = None,
    exc_info: BaseException | bool | None = None,
    **fields: object,
) -> None:
    """Log one event; fields that are None are left out.

    `event` is a stable name. Repeats are told by event and `repeat_key`, or if that is None by those fields
    that say what it is about (disk, segment, op, errno, name, path, reason): mount.linux.logs holds them back.
    """
    if not logger.isEnabledFor(level):
        return
    present = {key: value for key, value in fields.items() if value is not None}
    if repeat_key is None:
        repeat_key = tuple(str(present.get(name)) for name in _IDENTITY_FIELDS)
    extra = {"event": event, "fields": present, "repeat_key": repeat_key}
    logger.log(level, event, exc_info=exc_info, extra=extra)
