"""Text as a Java broker decodes it: UTF-8 by Java's rules, and String.hashCode of it. Compiled.

Valid UTF-8 means the same everywhere. Java replaces malformed bytes by U+FFFD piece by piece, with its own rules
for the size of a piece (java.lang.String#decodeUTF8_UTF16 with malformed3 and malformed4, JDK 17): an encoded
surrogate is one piece of three bytes, while Python sees three pieces of one byte. Hashes of tags and keys depend on
it.
"""

import numpy as np

from commitlogfs.pipeline.arrays.array_types import Bytes, Ints, Longs
from commitlogfs.pipeline.arrays.compiled import Scalar, compiled
from commitlogfs.pipeline.arrays.raw_bytes import word

_REPLACEMENT = 0xFFFD
_HIGH_BITS = np.uint64(0x8080808080808080)
_BYTES, _PAIRS, _LOW = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF), np.uint64(0xFFFFFFFF)
_P1, _P2, _P4, _P8 = np.uint64(31), np.uint64(31**2), np.uint64(31**4), np.uint64(31**8)
_8, _16, _32 = np.uint64(8), np.uint64(16), np.uint64(32)


def java_hashes(data: Bytes, starts: Longs, lengths: Longs, seeds: Ints | None = None) -> Ints:
    """String.hashCode of each text; `seeds`: hashes of prefixes to continue from. A length below 0 means empty."""
    hashes = np.zeros(len(starts), np.int32) if seeds is None else seeds.astype(np.int32)
    _hash(data, starts, lengths, hashes)
    return hashes


def well_formed(data: Bytes, starts: Longs, lengths: Longs) -> tuple[Bytes, Longs]:
    """The texts one after the other as valid UTF-8, and len + 1 offsets into them; malformed bytes are replaced as
    in Java."""
    total = int(np.maximum(lengths, 0).sum())
    out = np.empty(3 * total, np.uint8)  # one malformed byte becomes three
    offsets = np.zeros(len(starts) + 1, np.int64)
    _rewrite(data, starts, lengths, out, offsets)
    return out[: offsets[-1]], offsets


def malformed_rows(values: Bytes, offsets: Ints) -> Longs:
    """Rows of the consecutive texts that are not valid UTF-8, ascending."""
    if is_ascii(values):
        return np.empty(0, np.int64)
    starts, lengths = offsets[:-1].astype(np.int64), np.diff(offsets).astype(np.int64)
    rewritten, new_offsets = well_formed(values, starts, lengths)
    if np.array_equal(rewritten, values):
        return np.empty(0, np.int64)
    new_lengths = np.diff(new_offsets)
    differs = new_lengths != lengths
    for row in np.flatnonzero(~differs & (lengths > 0)).tolist():
        start, new_start, length = starts[row], new_offsets[row], lengths[row]
        differs[row] = not np.array_equal(values[start : start + length], rewritten[new_start : new_start + length])
    rows: Longs = np.flatnonzero(differs)
    return rows


def is_ascii(texts: Bytes) -> bool:
    """Whether no byte of a contiguous array has its highest bit set: then every text in it is well-formed."""
    return not _has_high_bit(texts)


def well_formed_text(raw: bytes) -> str:
    """One text, as a Java broker decodes it."""
    text, _ = well_formed(np.frombuffer(raw, np.uint8), np.zeros(1, np.int64), np.array([len(raw)]))
    return text.tobytes().decode()


@compiled
def _has_high_bit(texts: Bytes) -> Scalar:
    found: Scalar = np.uint64(0)
    words = texts.size // 8
    for index in range(words):
        found |= word(texts, 8 * index)
    for index in range(8 * words, texts.size):
        found |= np.uint64(texts[index])
    return (found & _HIGH_BITS) != 0


@compiled
def _continues(byte: Scalar) -> Scalar:
    return (byte & 0xC0) == 0x80


@compiled
def _next(data: Bytes, at: Scalar, end: Scalar) -> tuple[Scalar, Scalar]:
    """The code point at `at` (< end), and where the next one begins."""
    first = np.int64(data[at])
    left = end - at - 1
    if first < 0x80:
        return first, at + 1
    if 0xC2 <= first <= 0xDF:
        if left < 1:
            return _REPLACEMENT, end
        second = np.int64(data[at + 1])
        if not _continues(second):
            return _REPLACEMENT, at + 1
        return ((first & 0x1F) << 6) | (second & 0x3F), at + 2
    if 0xE0 <= first <= 0xEF:
        if left >= 1:
            second = np.int64(data[at + 1])
            if (first == 0xE0 and (second & 0xE0) == 0x80) or not _continues(second):
                return _REPLACEMENT, at + 1
        if left < 2:
            return _REPLACEMENT, end
        third = np.int64(data[at + 2])
        if not _continues(third):
            return _REPLACEMENT, at + 2
        point = ((first & 0x0F) << 12) | ((second & 0x3F) << 6) | (third & 0x3F)
        if 0xD800 <= point <= 0xDFFF:
            return _REPLACEMENT, at + 3
        return point, at + 3
    if 0xF0 <= first <= 0xF4:
        if left >= 1:
            second = np.int64(data[at + 1])
            if (
                (first == 0xF0 and (second < 0x90 or second > 0xBF))
                or (first == 0xF4 and (second & 0xF0) != 0x80)
                or not _continues(second)
            ):
                return _REPLACEMENT, at + 1
        if left >= 2 and not _continues(np.int64(data[at + 2])):
            return _REPLACEMENT, at + 2
        if left < 3:
            return _REPLACEMENT, end
        third, fourth = np.int64(data[at + 2]), np.int64(data[at + 3])
        if not _continues(fourth):
            return _REPLACEMENT, at + 3
        return ((first & 0x07) << 18) | ((second & 0x3F) << 12) | ((third & 0x3F) << 6) | (fourth & 0x3F), at + 4
    return _REPLACEMENT, at + 1


@compiled
def _hash(data: Bytes, starts: Longs, lengths: Longs, hashes: Ints) -> None:
    for row in range(starts.size):
        value = np.int64(hashes[row])
        at = starts[row]
        end = at + max(lengths[row], 0)
        while at < end:
            if at + 8 <= end:
                eight = word(data, at)
                if eight & _HIGH_BITS == 0:
                    # 31 * (the first of two) + the second, in lanes that double in width each time.
                    twos = (eight & _BYTES) * _P1 + ((eight >> _8) & _BYTES)
                    fours = (twos & _PAIRS) * _P2 + ((twos >> _16) & _PAIRS)
                    added = (fours & _LOW) * _P4 + (fours >> _32)
                    value = np.int64((np.uint64(value) * _P8 + added) & _LOW)
                    at += 8
                    continue
            byte = np.int64(data[at])
            if byte < 0x80:
                value = (value * 31 + byte) & 0xFFFFFFFF
                at += 1
                continue
            point, at = _next(data, at, end)
            if point >= 0x10000:
                point -= 0x10000
                value = (value * 31 + 0xD800 + (point >> 10)) & 0xFFFFFFFF
                value = (value * 31 + 0xDC00 + (point & 0x3FF)) & 0xFFFFFFFF
            else:
                value = (value * 31 + point) & 0xFFFFFFFF
        hashes[row] = value - 0x100000000 if value >= 0x80000000 else value


@compiled
def _rewrite(data: Bytes, starts: Longs, lengths: Longs, out: Bytes, offsets: Longs) -> None:
    done = 0
    for row in range(starts.size):
        at = starts[row]
        end = at + max(lengths[row], 0)
        while at < end:
            if data[at] < 0x80:
                out[done] = data[at]
                done += 1
                at += 1
                continue
            point, at = _next(data, at, end)
            if point < 0x800:
                out[done] = 0xC0 | (point >> 6)
            elif point < 0x10000:
                out[done] = 0xE0 | (point >> 12)
                done += 1
                out[done] = 0x80 | ((point >> 6) & 0x3F)
            else:
                out[done] = 0xF0 | (point >> 18)
                out[done + 1] = 0x80 | ((point >> 12) & 0x3F)
                done += 2
                out[done] = 0x80 | ((point >> 6) & 0x3F)
            out[done + 1] = 0x80 | (point & 0x3F)
            done += 2
        offsets[row + 1] = done
