"""Log events: a stable name and fields, which mount.linux.logs formats into one line.

The standard logging module carries them, so other programs that use this package see ordinary records.
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

    `event` is a stable name. mount.linux.logs suppresses repeats. Two events are repeats of each other if they have
    the same name and `repeat_key`; if that is None, the same fields disk, segment, op, errno, name, path, reason.
    """
    if not logger.isEnabledFor(level):
        return
    present = {key: value for key, value in fields.items() if value is not None}
    if repeat_key is None:
        repeat_key = tuple(str(present.get(name)) for name in _IDENTITY_FIELDS)
    extra = {"event": event, "fields": present, "repeat_key": repeat_key}
    logger.log(level, event, exc_info=exc_info, extra=extra)
