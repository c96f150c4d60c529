"""The parts that serve a mount, without a mount."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.pooled import Parts, open_parts


@pytest.fixture
def parts(workdir: Path) -> Iterator[Parts]:
    with open_parts(workdir) as parts:
        yield parts
