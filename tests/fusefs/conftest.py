"""These tests do not depend on the time limits of requests: on a busy machine, a disk that is well may be late."""

from collections.abc import Iterator

import pytest

from commitlogfs.fusefs.disks import disk_probes, member_records, usage_monitor
from commitlogfs.fusefs.files import copies, creation, disk_files, removal, resizing
from commitlogfs.fusefs.integrity import scrub, verdicts
from commitlogfs.fusefs.moves import mover, sources

LONG_S = 1000.0
LONGER_S = 10_000.0
"""For a create as a whole, which has several limits one after the other."""
_LIMITS = (
    (creation, "COMMIT_DEADLINE_S"),
    (creation, "RECLAIM_DEADLINE_S"),
    (creation, "RESERVE_DEADLINE_S"),
    (creation, "LINK_DEADLINE_S"),
    (removal, "REMOVE_DEADLINE_S"),
    (copies, "RENAME_DEADLINE_S"),
    (resizing, "RESIZE_DEADLINE_S"),
    (disk_files, "STAT_DEADLINE_S"),
    (disk_files, "LEFTOVER_DEADLINE_S"),
    (usage_monitor, "DEADLINE_S"),
    (disk_probes, "DEADLINE_S"),
    (member_records, "RECORD_PATIENCE_S"),
    (mover, "PUBLISH_DEADLINE_S"),
    (mover, "CHUNK_DEADLINE_S"),
    (mover, "CLOSE_DEADLINE_S"),
    (sources, "PREPARE_DEADLINE_S"),
    (scrub, "RECORD_PATIENCE_S"),
    (verdicts, "LOAD_PATIENCE_S"),
)


@pytest.fixture(autouse=True)
def _patient() -> Iterator[None]:
    """A test in which a limit passes sets it itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(creation, "CREATE_DEADLINE_S", LONGER_S)
        for module, name in _LIMITS:
            patch.setattr(module, name, LONG_S)
        yield
