"""Size of the disks that the measurements of moves need. Pure."""

from typing import Final

from commitlogfs.bench.datapath_settings import Settings
from commitlogfs.store.thresholds import Thresholds

HOT_SEGMENTS: Final = 6
"""Segments that stay, in the page cache: the newest three of the log, which no drain moves, and as many others."""
AFTER_CHANGE_S: Final = 2.5
"""How long a move is measured after a change of its rate."""
FASTER: Final = 3
"""Factor between the two rates of a change."""
MADE_AHEAD: Final = 4
"""Segments that a broker fills until it uses those that were made after a change of the disks."""
MOVED_AT_ONCE: Final = 24
"""Segments that are left for the moves between two counts of cached pages, at least."""
LEAST_DISKS: Final = 2
_STORED_WITH_BODY: Final = 256
"""Upper bound of the bytes of a message in the log beside its body."""
_OF_THE_FILESYSTEM: Final = 384 << 20


def paced_segments(settings: Settings) -> int:
    """Number of segments that are moved at a given rate: enough for all windows and changes, and for the moves at
    the end."""
    window_bytes = settings.move_rate * settings.move_windows * settings.move_window_s
    change_bytes = settings.move_rate * (FASTER + 1) / 2 * AFTER_CHANGE_S * settings.move_changes
    # Each byte is read twice.
    return int((window_bytes + change_bytes) * 1.2 / 2 / settings.broker_segment_bytes) + MOVED_AT_ONCE


def warm_up_messages(settings: Settings) -> int:
    """Number of messages that a broker takes before each measurement."""
    return max(settings.warm_up_messages, MADE_AHEAD * settings.broker_segment_bytes // settings.body_bytes)


def needed_by_moves(settings: Settings) -> int:
    """Required size of one disk, so that none is above `clean` at the end."""
    size = settings.broker_segment_bytes
    a_message = settings.body_bytes + _STORED_WITH_BODY
    cold = settings.cold_bytes // settings.body_bytes * a_message + MADE_AHEAD * size
    sent = 2 * warm_up_messages(settings) * a_message
    sent += 3 * settings.rounds * (settings.messages + settings.sync_messages) * a_message
    others = max(settings.disks - 1, 1)
    each = max(cold, (cold + sent) // others, paced_segments(settings) * size) + MADE_AHEAD * size
    return each * 100 // Thresholds().clean + _OF_THE_FILESYSTEM
