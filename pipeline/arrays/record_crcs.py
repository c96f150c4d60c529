"""The CRCs of many records: those of their bodies, and those of the records themselves.

With enabledAppendPropCRC the last 20 bytes of a record are `__CRC32#`, 0x01, ten decimal digits with the least
significant first, 0x02; the CRC is of all before them (CommitLog.CRC32_RESERVED_LEN, MessageDecoder#createCrc32).
"""

import numpy as np

from commitlogfs.pipeline.arrays.array_types import Bytes, Longs
from commitlogfs.pipeline.arrays.crc import crcs
from commitlogfs.pipeline.arrays.fields import RecordFields
from commitlogfs.store.record import PROPERTY_CRC_BYTES

_NAME = np.frombuffer(b"__CRC32#\x01", np.uint8)
_PLACES = 10 ** np.arange(10, dtype=np.int64)


def wrong_body_crcs(data: Bytes, fields: RecordFields) -> Longs:
    """Rows of the records whose bodies do not match their CRCs. An empty body always matches: the broker does not
    check its CRC either (CommitLog#checkMessageAndReturnSize)."""
    wrong = crcs(data, fields.body_start, fields.body_length) != fields.body_crc
    rows: Longs = np.flatnonzero(wrong & (fields.body_length > 0))
    return rows


def wrong_property_crcs(data: Bytes, positions: Longs, fields: RecordFields) -> Longs:
    """Rows of the records that have a CRC in their properties and do not match it."""
    ends = positions + fields.total_size
    rows: Longs = np.flatnonzero(fields.properties_length >= PROPERTY_CRC_BYTES)
    # Most logs have no such CRC, and one byte of each record shows it.
    rows = rows[data[ends[rows] - PROPERTY_CRC_BYTES] == _NAME[0]]
    if not len(rows):
        return rows
    tails = data[ends[rows, None] - PROPERTY_CRC_BYTES + np.arange(PROPERTY_CRC_BYTES)]
    has_one = (tails[:, : len(_NAME)] == _NAME).all(axis=1) & (tails[:, -1] == 2)
    rows, digits = rows[has_one], tails[has_one, len(_NAME) : -1].astype(np.int64) - ord("0")
    stored = np.where(((digits >= 0) & (digits <= 9)).all(axis=1), digits @ _PLACES, -1)
    actual = crcs(data, positions[rows], fields.total_size[rows] - PROPERTY_CRC_BYTES)
    wrong: Longs = rows[stored != actual]
    return wrong
