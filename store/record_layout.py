"""Positions, lengths and magic numbers of a record: the only place that defines the log's format.

All numbers are big-endian (RocketMQ MessageExtEncoder#encode, CommitLog#checkMessageAndReturnSize):

    TOTALSIZE 4  MAGIC 4  BODYCRC 4  QUEUEID 4  FLAG 4  QUEUEOFFSET 8  PHYSICALOFFSET 8  SYSFLAG 4
    BORNTIMESTAMP 8  BORNHOST 8|20  STORETIMESTAMP 8  STOREHOST 8|20  RECONSUMETIMES 4
    PREPAREDTRANSACTIONOFFSET 8  BODYLEN 4 BODY  TOPICLEN 1|2 TOPIC  PROPLEN 2 PROPERTIES

A host is an address of 4 or 16 bytes, as SYSFLAG says, and a port of 4. TOPICLEN has 1 byte in V1, 2 in V2. A
segment ends with a blank record: 8 bytes, TOTALSIZE = the rest of the segment. Bytes after the last record of the
log may be anything, even an old record: only a record that carries its own log offset counts.

Positions count from the record's first byte. Positions after BORN_HOST_AT hold for two IPv4 hosts: add IPV6_EXTRA
for each host that is an IPv6 address and lies before the field.
"""

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194

TOTAL_SIZE_AT = 0
MAGIC_AT = 4
BODY_CRC_AT = 8
QUEUE_ID_AT = 12
FLAG_AT = 16
QUEUE_OFFSET_AT = 20
PHYSICAL_OFFSET_AT = 28
SYS_FLAG_AT = 36
BORN_TIMESTAMP_AT = 40
BORN_HOST_AT = 48
STORE_TIMESTAMP_AT = 56
STORE_HOST_AT = 64
RECONSUME_TIMES_AT = 72
PREPARED_OFFSET_AT = 76
BODY_LENGTH_AT = 84
BODY_AT = 88

BORN_HOST_V6_BIT = 4
"""Bit of SYSFLAG: the born host is an IPv6 address."""
STORE_HOST_V6_BIT = 5
IPV4_HOST_BYTES = 8
IPV6_EXTRA = 12

SIZE_AND_MAGIC_BYTES = 8
"""Length of TOTALSIZE and MAGIC, which show whether a record begins here."""
PROPERTIES_LENGTH_BYTES = 2
SMALLEST_RECORD_BYTES = 91
"""Size of a V1 record with two IPv4 hosts and an empty body, topic and properties."""
LARGEST_HEADER_BYTES = BODY_AT + 2 * IPV6_EXTRA
"""Length of all fields before the body, with two IPv6 hosts."""
END_BLANK_BYTES = 8
"""Bytes that a record leaves at least at the segment's end, for the blank record
(CommitLog.END_FILE_MIN_BLANK_LENGTH)."""
LARGEST_V1_TOPIC_BYTES = 127

assert SIZE_AND_MAGIC_BYTES == MAGIC_AT + 4 == BODY_CRC_AT
assert BORN_HOST_AT == BORN_TIMESTAMP_AT + 8 == SYS_FLAG_AT + 12
assert STORE_TIMESTAMP_AT == BORN_HOST_AT + IPV4_HOST_BYTES
assert RECONSUME_TIMES_AT == STORE_HOST_AT + IPV4_HOST_BYTES
assert BODY_AT == BODY_LENGTH_AT + 4
assert SMALLEST_RECORD_BYTES == BODY_AT + 1 + PROPERTIES_LENGTH_BYTES
