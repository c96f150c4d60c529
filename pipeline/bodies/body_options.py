"""How the bodies of messages are read."""

from dataclasses import dataclass
from typing import Final

DEFAULT_LIMIT: Final = 64 << 20
"""Sixteen times the size of the largest body that a producer sends by default (maxMessageSize, 4 MiB)."""
LARGEST_LIMIT: Final = 1 << 30
"""An Arrow array of bodies must stay below 2 GiB."""


@dataclass(frozen=True, slots=True)
class BodyOptions:
    """Picklable."""

    decompress: bool = False
    unfold: bool = False
    """Batches become one row for each message; their bodies are decompressed for that, if necessary."""
    limit: int = DEFAULT_LIMIT
    """Most bytes of a decompressed body."""


AS_STORED: Final = BodyOptions()
