"""Size of the disks that the measurements of a scrub need. Pure."""

from commitlogfs.bench.beside_broker import MADE_AHEAD, cold_log_bytes, compared_log_bytes
from commitlogfs.bench.datapath_settings import Settings
from commitlogfs.bench.measured_pool import disk_bytes
from commitlogfs.store.pool.catalog import NEWEST_KEPT


def read_segments(settings: Settings) -> int:
    """Number of segments that a free-running scrub reads."""
    return settings.scrub_bytes // settings.scrub_segment_bytes


def needed_by_scrub(settings: Settings) -> int:
    """Required size of one disk, so that none is above `clean` at the end."""
    reading = (read_segments(settings) + NEWEST_KEPT) * settings.scrub_segment_bytes
    sending = (cold_log_bytes(settings) + compared_log_bytes(settings)) // settings.disks
    return disk_bytes(max(reading, sending) + MADE_AHEAD * settings.broker_segment_bytes)
