"""The search through a damaged segment: its result is that of a naive one, and its work and its steps are small."""

import contextlib
import random
import struct
from dataclasses import replace
from typing import Any, Final

import pytest
from support.records import V1, V2, make_blank, make_record

from commitlogfs.store.record import (
    BlankRecordError,
    Record,
    RecordError,
    TruncatedRecordError,
    WrongOffsetError,
    decode,
    peek,
)
from commitlogfs.store.scrub import chain as chain_module
from commitlogfs.store.scrub.chain import Chain, Load, check_chain, name_message
from commitlogfs.store.scrub.verdict import Damage, Message, Range
from commitlogfs.store.segment import BaseOffset

MAGICS: Final = [magic.to_bytes(4, "big") for magic in (V1, V2, 0xCBD43194)]
LARGEST: Final = 64 << 20
SIZES: Final = (0, 1, 8, 90, 91, 200, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, LARGEST, LARGEST + 1)
HOSTS: Final = (("10.1.2.3", 1), ("fe80::1", 2))
SLICE: Final = 16 << 10
BASE: Final = BaseOffset(1 << 30)


def loader(content: bytes, chunk: int = 1 << 20) -> Load:
    parts = iter([content[at : at + chunk] for at in range(0, len(content), chunk)])
    return lambda: next(parts, b"")


# --- a naive check ---------------------------------------------------------------------------------------


class Naive:
    """The same check of bytes that are all in memory: each position is tried."""

    def __init__(self, content: bytes, base: BaseOffset) -> None:
        self.content, self.base = content, base

    def result(self) -> tuple[list[Damage], bool, int]:
        damages: list[Damage] = []
        position, size = 0, len(self.content)
        while position < size:
            try:
                end, message = self.record(position)
                reason = "the checksum of the message is wrong" if message is not None else ""
            except BlankRecordError as blank:
                if blank.size == size - position:
                    if [damage.range for damage in damages] == [(0, position)]:  # no record shows where it belongs
                        damages = [replace(damages[0], range=Range(0, size))]
                    return damages, True, position
                end, reason = 0, f"a blank record of {blank.size} bytes ends elsewhere"
            except RecordError as error:
                end, reason = 0, str(error)
            if not end:
                written = size - len(self.content[position:].lstrip(b"\0"))
                if written == size:
                    return damages, False, position
                end = self.next_record(max(position + 1, written - 8))
                head = self.content[position:end][: chain_module._HEAD_BYTES]
                has_size = head[:4] == struct.pack(">I", size - position)
                if end == size and len(head) >= 8 and (has_size or head[4:8] == MAGICS[2]):
                    damages.append(Damage(Range(position, size), "the blank record is damaged", is_blank=True))
                    return damages, False, size
                message = name_message(head, end - position, self.base, position)
            if reason:
                damages.append(Damage(Range(position, end), reason, message))
            position = end
        return damages, False, size

    def record(self, position: int) -> tuple[int, Message | None]:
        """End of the record there, and its message if its checksum is wrong. Raises RecordError."""
        rest = self.content[position:]
        length = peek(rest[:8])
        if length > min(len(rest), LARGEST):
            raise TruncatedRecordError(length, len(rest))
        (own_offset,) = struct.unpack_from(">q", rest, 28)
        if own_offset != self.base + position:
            raise WrongOffsetError(own_offset)
        record = decode(rest, own_offset)
        is_sound = record.body_crc_ok and record.property_crc_ok is not False
        if record.body_crc_ok and not is_sound:
            record = self.with_right_name(rest[:length], record)
        message = Message(position, record.topic, record.queue_id, record.queue_offset)
        return position + length, None if is_sound else message

    def with_right_name(self, data: bytes, record: Record) -> Record:
        topic_at = data.index(record.topic_bytes, len(data) - record.total_size + 88 + len(record.body))
        for at in (*range(12, 16), *range(20, 28), *range(topic_at, topic_at + len(record.topic_bytes))):
            for value in range(256):
                with contextlib.suppress(RecordError):
                    changed = decode(data[:at] + bytes([value]) + data[at + 1 :], record.physical_offset)
                    if changed.property_crc_ok:
                        return changed
        return record

    def next_record(self, start: int) -> int:
        for position in range(start, len(self.content)):
            if self.content[position + 4 : position + 8] in MAGICS:
                try:
                    self.record(position)
                except BlankRecordError as blank:
                    if blank.size == len(self.content) - position:
                        return position
                except RecordError:
                    continue
                else:
                    return position
        return len(self.content)


def adversarial(rng: random.Random, size: int, base: int) -> bytes:
    """Records, damaged records, pieces of magic numbers, wrong sizes and zeros."""

    def record(**fields: Any) -> bytearray:
        choices: dict[str, Any] = {
            "magic": rng.choice((V1, V2)),
            "body": rng.randbytes(rng.choice((0, 3, 30, 150))),
            "topic": b"t" * rng.choice((0, 1, 9)),
            "born": rng.choice(HOSTS),
            "stored": rng.choice(HOSTS),
            "property_crc": rng.random() < 0.2,
        }
        return bytearray(make_record(base + len(content), **choices | fields))

    def flipped() -> bytearray:
        damaged = record()
        place = rng.choice((*range(12), *range(28, 40), *range(84, 120), len(damaged) - 1))
        damaged[place % len(damaged)] ^= 1 << rng.randrange(8)
        return damaged

    def resized() -> bytearray:
        """With a size of its own, and often with a body that fits it."""
        damaged = record(born=HOSTS[0], stored=HOSTS[0])
        rest = max(size - len(content), 0)
        claimed = rng.choice((len(damaged) + rng.choice((-1, 1, 40)), rest, rng.choice(SIZES)))
        damaged[:4] = struct.pack(">I", claimed)
        body_length = rng.choice((claimed - 88, claimed - 89, claimed - 90, claimed - 91, claimed - 130, -1, 1))
        damaged[84:88] = struct.pack(">i", body_length) if -(1 << 31) <= body_length < 1 << 31 else b"\xff" * 4
        return damaged

    content = bytearray()
    while len(content) < size:
        match rng.randrange(12):
            case 0 | 1 | 2:
                content += record()
            case 3:
                content += flipped()
            case 4 | 5:
                content += resized()
            case 6:
                content += rng.choice(MAGICS)
            case 7:
                content += struct.pack(">I", rng.choice((*SIZES, max(size - len(content), 0)))) + rng.choice(MAGICS)
            case 8:
                content += rng.choice(MAGICS)[: rng.randrange(1, 4)]
            case 9:
                content += bytes(rng.randrange(60))
            case 10:
                content += rng.choice((b"\xda", b"\xcb", b"\xa3\x20")) * rng.randrange(10)
            case 11:
                content += make_record(base + len(content) + rng.choice((-1, 1)))
    del content[size:]
    if rng.random() < 0.5:
        blank = rng.randrange(8, 40)
        content[-blank : size - blank + 8] = struct.pack(">I", blank) + MAGICS[2]
    if rng.random() < 0.3:
        content[-4:] = rng.choice(MAGICS)
    return bytes(content)


def results_of(chain: Chain) -> tuple[list[Damage], bool, int]:
    return chain.damages, chain.has_end, chain.end


@pytest.mark.parametrize("seed", range(8))
def test_results_are_those_of_a_naive_check(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)  # noqa: S311
    monkeypatch.setattr(chain_module, "_SMALL_RECORD_BYTES", 112, raising=False)
    for _ in range(40):
        monkeypatch.setattr(chain_module, "_SLICE_BYTES", rng.choice((1, 2, 3, 5, 64, 500)), raising=False)
        monkeypatch.setattr(chain_module, "_HEAD_BYTES", rng.choice((0, 100, 300, 4 << 20)))
        size = rng.choice((91, 100, 200, 500, 1500, 3000))
        base = BaseOffset(rng.choice((0, size * 3, 1 << 40)))
        content = adversarial(rng, size, base)
        chain = check_chain(loader(content, rng.choice((1, 2, 3, 7, 8, 13, 64, 1000, 4096))), base, size)
        assert results_of(chain) == Naive(content, base).result()


@pytest.mark.parametrize("magic", MAGICS[:2])
@pytest.mark.parametrize("shift", range(-9, 3))
def test_a_record_across_two_slices_and_chunks_is_found(shift: int, magic: bytes) -> None:
    begin = SLICE + 5 + shift
    record = make_record(BASE + begin, magic=int.from_bytes(magic, "big"))
    content = b"\xda" * begin + record + make_blank(100).ljust(100, b"\0")
    for chunk in (begin + 6, SLICE, len(content)):
        chain = check_chain(loader(content, chunk), BASE, len(content))
        assert [damage.range for damage in chain.damages] == [(0, begin)]
        assert chain.end == begin + len(record)


# --- its work --------------------------------------------------------------------------------------------


class Window(bytearray):
    """Counts what is searched in it and copied from it."""

    longest_search = 0
    copied = 0
    largest = 0

    def find(self, sub: Any, start: Any = 0, end: Any = None, /) -> int:
        stop = len(self) if end is None else min(end, len(self))
        Window.longest_search = max(Window.longest_search, stop - start)
        return super().find(sub, start, end)

    def __getitem__(self, key: Any) -> Any:
        part = super().__getitem__(key)
        if isinstance(key, slice):
            Window.copied += len(part)
        return part

    def __iadd__(self, other: Any) -> "Window":
        super().__iadd__(other)
        Window.largest = max(Window.largest, len(self))
        return self


@pytest.fixture(autouse=True)
def window(monkeypatch: pytest.MonkeyPatch) -> type[Window]:
    monkeypatch.setattr(chain_module, "bytearray", Window, raising=False)
    Window.longest_search = Window.copied = Window.largest = 0
    return Window


@pytest.mark.parametrize("byte", [0xDA, 0xCB, 0x01])
def test_a_search_consists_of_short_steps(byte: int, window: type[Window]) -> None:
    content = bytes([byte]) * (4 << 20)
    pauses: list[None] = []
    chain = check_chain(loader(content), BASE, len(content), pause=lambda: pauses.append(None))
    assert [damage.range for damage in chain.damages] == [(0, len(content))]
    assert 0 < window.longest_search < SLICE + 4
    assert len(pauses) >= len(content) // SLICE


def test_a_search_ends_when_a_pause_ends_it() -> None:
    class StoppedError(Exception):
        pass

    pauses: list[None] = []

    def pause() -> None:
        pauses.append(None)
        if len(pauses) == 3:
            raise StoppedError

    content = b"\xda" * (1 << 20)
    with pytest.raises(StoppedError):
        check_chain(loader(content), BASE, len(content), pause=pause)
    assert len(pauses) == 3


def with_small_damages(count: int, size: int, first_size_bit: int) -> bytes:
    """A record with a wrong size, and then sound ones and ones with a wrong length of the body by turns."""
    content = bytearray(make_record(BASE, body=b"b" * 400))
    content[3 - first_size_bit // 8] ^= 1 << first_size_bit % 8
    for _ in range(count):
        content += make_record(BASE + len(content), body=b"g" * 400)
        damaged = bytearray(make_record(BASE + len(content), body=b"b" * 400))
        damaged[84] ^= 0x7F
        content += damaged
    while len(content) < size - 70_000:
        content += make_record(BASE + len(content), body=b"e" * 65_000)
    blank = size - len(content)
    return bytes(content) + make_blank(blank).ljust(blank, b"\0")


def test_small_damages_do_not_copy_the_rest(window: type[Window]) -> None:
    """A record with a size that is too large does not make the window large, either."""
    count, size = 100, 6 << 20
    content = with_small_damages(count, size, first_size_bit=22)
    chain = check_chain(loader(content), BASE, size)
    assert len(chain.damages) == count + 1
    assert all(damage.message is not None for damage in chain.damages)
    assert window.copied < 3 * size
    assert window.largest <= 2 << 20


def test_a_record_is_not_copied_before_its_lengths_fit(window: type[Window]) -> None:
    """Each head has the right log offset, and claims all bytes up to the end."""
    size = 256 << 10
    heads = bytearray(size)
    for at in range(0, size - 40, 36):
        struct.pack_into(">II", heads, at, size - at, V1)
        struct.pack_into(">q", heads, at + 28, BASE + at)
    chain = check_chain(loader(bytes(heads)), BASE, size)
    assert [damage.range for damage in chain.damages] == [(0, size)]
    assert window.copied < 32 * size


def test_the_window_does_not_grow_while_heads_claim_more(window: type[Window]) -> None:
    """Each head claims a body of 1 MiB, at whose end nothing fits."""
    size, claimed = 8 << 20, 1 << 20
    heads = bytearray(b"\x01" * size)
    for at in range(0, size - claimed, 4096):
        heads[at : at + 88] = bytes(88)
        struct.pack_into(">II", heads, at, claimed, V1)
        struct.pack_into(">q", heads, at + 28, BASE + at)
        struct.pack_into(">i", heads, at + 84, claimed - 100)
    chain = check_chain(loader(bytes(heads), 1 << 16), BASE, size)
    assert [damage.range for damage in chain.damages] == [(0, size)]
    assert window.largest < 6 << 20
