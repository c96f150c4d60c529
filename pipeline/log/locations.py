"""Places as people name them: folders, comma lists of folders, URIs. Loads nothing."""

from pathlib import Path
from urllib.parse import unquote, urlsplit


def is_uri(place: str) -> bool:
    return "://" in place or place.startswith("file:")


def split_places(path: str) -> list[str]:
    """The places in a comma list."""
    return [place.strip() for place in path.split(",") if place.strip()]


def absolute_place(place: str) -> str:
    """The same place, whatever the working directory: a worker has another one than the driver."""
    return place if is_uri(place) else str(Path(place).absolute())


def absolute_places(path: str) -> str:
    """`absolute_place` of each in a comma list."""
    return ",".join(map(absolute_place, split_places(path)))


def local_path(place: str) -> Path | None:
    """Where a folder or a `file:` URI lies on this machine; None for any other URI."""
    if place.startswith("file:"):
        return Path(unquote(urlsplit(place).path))
    return None if is_uri(place) else Path(place)
