"""Size of the disks that the measurements of moves need, and what that depends on. Pure."""

from typing import Final

from commitlogfs.bench.beside_broker import MADE_AHEAD, cold_log_bytes, compared_log_bytes
from commitlogfs.bench.datapath_settings import Settings
from commitlogfs.bench.measured_pool import disk_bytes

HOT_SEGMENTS: Final = 6
"""Segments that stay, in the page cache: the newest three of the log, which no drain moves, and as many others."""
AFTER_CHANGE_S: Final = 2.5
"""How long a move is measured after a change of its rate."""
FASTER: Final = 3
"""Factor between the two rates of a change."""
MOVED_AT_ONCE: Final = 24
"""Segments that are left for the moves between two counts of cached pages, at least."""
LEAST_DISKS: Final = 2


def paced_segments(settings: Settings) -> int:
    """Number of segments that are moved at a given rate: enough for all windows and changes, and for the moves at
    the end."""
    window_bytes = settings.move_rate * settings.move_windows * settings.move_window_s
    change_bytes = settings.move_rate * (FASTER + 1) / 2 * AFTER_CHANGE_S * settings.move_changes
    # Each byte is read twice.
    return int((window_bytes + change_bytes) * 1.2 / 2 / settings.broker_segment_bytes) + MOVED_AT_ONCE


def needed_by_moves(settings: Settings) -> int:
    """Required size of one disk, so that none is above `clean` at the end."""
    size, cold = settings.broker_segment_bytes, cold_log_bytes(settings)
    others = max(settings.disks - 1, 1)
    each = max(cold, (cold + compared_log_bytes(settings)) // others, paced_segments(settings) * size)
    return disk_bytes(each + MADE_AHEAD * size)
