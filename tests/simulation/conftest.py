"""Directories of simulated disks lie in memory, if there are extended attributes."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from commitlogfs.bench import sweep

IN_MEMORY = Path("/dev/shm")


def _has_attributes(directory: Path) -> bool:
    """Linux has had those of users on tmpfs since 6.6."""
    try:
        os.setxattr(directory, "user.commitlogfs.test", b"x")
    except OSError:
        return False
    return True


@pytest.fixture
def memory_directory(base_directory: Path, workdir: Path) -> Iterator[Path]:
    """An empty directory, if possible in memory: nothing of it has to last. The next run removes that of an aborted
    one."""
    if not IN_MEMORY.is_dir():
        yield workdir
        return
    directory = Path(tempfile.mkdtemp(prefix="commitlogfs-test-", dir=IN_MEMORY))
    sweep.claim(base_directory, directory)
    try:
        yield directory if _has_attributes(directory) else workdir
    finally:
        shutil.rmtree(directory)
