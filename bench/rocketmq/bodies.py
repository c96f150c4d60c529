"""The deterministic message bodies of Bodies.java, for tests that read a record back by themselves."""

import struct

_MASK = (1 << 64) - 1


def make_body(sequence: int, size_bytes: int) -> bytes:
    """The sequence number as 8 bytes, big-endian, then splitmix64 output seeded by it."""
    words = [sequence]
    state = sequence
    for _ in range((size_bytes + 7) // 8 - 1):
        state = (state + 0x9E3779B97F4A7C15) & _MASK
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        words.append(z ^ (z >> 31))
    return struct.pack(f">{len(words)}Q", *words)[:size_bytes]
