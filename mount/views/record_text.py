"""A record of the log as text and as a JSON object. Pure."""

import base64
import time
import zlib
from typing import Any

from commitlogfs.store.printable import printable
from commitlogfs.store.record import Compression, Record, SysFlag, Transaction

_TEXT_SHOWN = 2000
_HEX_BYTES_SHOWN = 512
_HEX_BYTES_PER_LINE = 16
_LARGEST_UNPACKED = 1 << 20


def describe_record(record: Record) -> list[str]:
    """One line for each field, the body last."""
    fields = {
        "offset": f"{record.physical_offset}, {record.total_size:,} bytes, format V{record.version}",
        "topic": printable(record.topic),
        "queue": f"{record.queue_id}, offset {record.queue_offset}",
        "born": f"{_moment(record.born_timestamp_ms)} at {record.born_host}",
        "stored": f"{_moment(record.store_timestamp_ms)} at {record.store_host}",
        "flags": ", ".join(describe_flags(record)) or "none",
        "reconsumed": f"{record.reconsume_times} times",
    }
    if record.flag:
        fields["user flag"] = str(record.flag)
    if record.prepared_transaction_offset:
        fields["prepared at"] = f"offset {record.prepared_transaction_offset}"
    lines = [f"{name:<12}{text}" for name, text in fields.items()]
    lines += [
        f"{'property':<12}{printable(name)} = {printable(value)}" for name, value in record.properties.items()
    ]
    checks = f"CRC {record.body_crc:08x}, " + ("correct" if record.body_crc_ok else "WRONG: the body is damaged")
    lines.append(f"{'body':<12}{len(record.body):,} bytes, {checks}")
    if record.property_crc_ok is not None:
        verdict = "correct" if record.property_crc_ok else "WRONG: the record is damaged"
        lines.append(f"{'record CRC':<12}{verdict}")
    return [*lines, *_describe_body(record)]


def is_intact(record: Record) -> bool:
    return record.body_crc_ok and record.property_crc_ok is not False


def describe_flags(record: Record) -> list[str]:
    words = []
    if record.sys_flag & SysFlag.COMPRESSED:
        words.append(f"compressed ({_compression(record)})")
    if record.transaction is not Transaction.NONE:
        words.append(f"transaction {record.transaction.name.lower()}")
    for flag, word in (
        (SysFlag.MULTI_TAGS, "several tags"),
        (SysFlag.NEED_UNWRAP, "needs unwrapping"),
        (SysFlag.INNER_BATCH, "inner batch"),
    ):
        if record.sys_flag & flag:
            words.append(word)
    return words


def record_as_json(record: Record) -> dict[str, Any]:
    """Stable schema. The names are RocketMQ's where it has one; the body is as stored, in base64."""
    return {
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "commitLogOffset": record.physical_offset,
        "storeSize": record.total_size,
        "version": record.version,
        "flag": record.flag,
        "sysFlag": record.sys_flag,
        "flags": describe_flags(record),
        "bornTimestamp": record.born_timestamp_ms,
        "bornHost": str(record.born_host),
        "storeTimestamp": record.store_timestamp_ms,
        "storeHost": str(record.store_host),
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "properties": record.properties,
        "bodyCRC": record.body_crc,
        "bodyCrcOk": record.body_crc_ok,
        "propertyCrcOk": record.property_crc_ok,
        "body_base64": base64.b64encode(record.body).decode(),
    }


def _describe_body(record: Record) -> list[str]:
    body = _unpacked(record)
    if body is None:
        return ["", *_hexdump(record.body)]
    if body is not record.body:
        return [f"{'':<12}{len(body):,} bytes when unpacked", "", *_text_or_hex(body)]
    return ["", *_text_or_hex(body)] if body else []


def _text_or_hex(body: bytes) -> list[str]:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return _hexdump(body)
    if not all(character.isprintable() or character in "\n\t" for character in text):
        return _hexdump(body)
    lines = text[:_TEXT_SHOWN].split("\n")
    rest = len(text) - _TEXT_SHOWN
    return [*lines, f"... and {rest:,} characters more: --raw and --json show all"] if rest > 0 else lines


def _hexdump(body: bytes) -> list[str]:
    lines = []
    for start in range(0, min(len(body), _HEX_BYTES_SHOWN), _HEX_BYTES_PER_LINE):
        part = body[start : start + _HEX_BYTES_PER_LINE]
        shown = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in part)
        lines.append(f"{start:06x}  {part.hex(' '):<{3 * _HEX_BYTES_PER_LINE - 1}}  {shown}")
    rest = len(body) - _HEX_BYTES_SHOWN
    return [*lines, f"... and {rest:,} bytes more: --raw and --json show all"] if rest > 0 else lines


def _unpacked(record: Record) -> bytes | None:
    """The body as the producer sent it; None if Python 3.11 does not know its compression."""
    if not record.sys_flag & SysFlag.COMPRESSED:
        return record.body
    if _compression(record) != "zlib":
        return None
    try:
        return zlib.decompressobj().decompress(record.body, _LARGEST_UNPACKED)
    except zlib.error:
        return None


def _compression(record: Record) -> str:
    try:
        kind = record.compression
    except ValueError:
        return "of an unknown kind"
    if kind in (Compression.ZLIB, Compression.ZLIB_OF_OLD_CLIENTS):
        return "zlib"
    return "" if kind is None else kind.name.lower()


def _moment(milliseconds: int) -> str:
    try:
        text = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(milliseconds // 1000))
    except (OverflowError, ValueError, OSError):
        return f"{milliseconds} ms"
    return f"{text}.{milliseconds % 1000:03d}"
