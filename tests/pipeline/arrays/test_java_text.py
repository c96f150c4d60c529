"""Hashes and replaced text are those of a real JVM, for any bytes."""

import random
import subprocess
from pathlib import Path

import numpy as np
import pytest
from support.waiting import PATIENCE_S

from commitlogfs.pipeline.arrays.java_text import is_ascii, java_hashes, well_formed

_PROGRAM = """
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.Scanner;
public class Text {
    public static void main(String[] args) {
        Scanner lines = new Scanner(System.in);
        while (lines.hasNextLine()) {
            String text = new String(HexFormat.of().parseHex(lines.nextLine()), StandardCharsets.UTF_8);
            System.out.println(text.hashCode() + " x"
                + HexFormat.of().formatHex(text.getBytes(StandardCharsets.UTF_8)));
        }
    }
}
"""


def _samples() -> list[bytes]:
    seed = random.Random(7)  # noqa: S311 - the same bytes each time
    edges = [0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED]
    edges += [0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xF7, 0xF8, 0xFB, 0xFC, 0xFE, 0xFF]
    pairs = [bytes([one, other]) for one in edges for other in edges]
    longer = [bytes(seed.choices(edges, k=seed.randint(3, 7))) for _ in range(20000)]
    texts = ["TagA", "", "täg", "标签", "😀 tag 😀", "a" * 300, "\U0010ffff\uffff\ud7ff\ue000"]
    return [*(text.encode() for text in texts), *(bytes([one]) for one in edges), *pairs, *longer]


@pytest.mark.full
def test_every_kind_of_bytes_is_read_as_a_jvm_reads_them(tmp_path: Path) -> None:
    program = tmp_path / "Text.java"
    program.write_text(_PROGRAM)
    samples = _samples()
    text = "".join(f"{sample.hex()}\n" for sample in samples)
    answer = subprocess.run(
        ["java", "-XX:+UseSerialGC", str(program)],
        input=text,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    said = [line.split(" x") for line in answer.stdout.splitlines()]
    data = np.frombuffer(b"".join(samples), np.uint8)
    lengths = np.array([len(sample) for sample in samples], np.int64)
    starts = np.cumsum(lengths) - lengths
    assert java_hashes(data, starts, lengths).tolist() == [int(words[0]) for words in said]
    rewritten, offsets = well_formed(data, starts, lengths)
    ours = [rewritten[offsets[i] : offsets[i + 1]].tobytes().hex() for i in range(len(samples))]
    assert ours == [words[1] for words in said]


def test_a_hash_can_be_continued() -> None:
    data = np.frombuffer("TopicA#标签".encode(), np.uint8)
    whole = java_hashes(data, np.array([0]), np.array([len(data)]))
    prefix = java_hashes(data, np.array([0]), np.array([7]))
    assert java_hashes(data, np.array([7]), np.array([len(data) - 7]), prefix).tolist() == whole.tolist()


def test_one_high_bit_anywhere_is_seen() -> None:
    for length in range(40):
        texts = np.full(length, 0x7F, np.uint8)
        assert is_ascii(texts)
        for place in range(length):
            texts[place] = 0x80
            assert not is_ascii(texts), (length, place)
            texts[place] = 0
