"""Repairs of damaged segments, without a kernel."""

import trio
from support.pooled import SIZE, Parts, place, segment

from commitlogfs.store.scrub.verdict import Kind, whole_verdict


def test_a_damaged_segment_whose_file_is_gone_is_not_repairable(parts: Parts) -> None:
    """It may be moved or removed while its checksum is read."""
    file = segment(parts, 1)
    parts.verdicts.record(file, whole_verdict(Kind.ROTTED, SIZE, 5))
    place(parts, 1).unlink()
    (found,) = trio.run(parts.restores.damaged)
    assert (found.segment, found.checksum) == (file, None)
    assert "its disk cannot read its checksum" in found.reason
