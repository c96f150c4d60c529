"""Locations as users write them: directories, comma lists of directories, URIs. Imports nothing large."""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit


def is_uri(place: str) -> bool:
    return "://" in place or place.startswith("file:")


def split_places(path: str) -> list[str]:
    """The locations in a comma list."""
    return [place.strip() for place in path.split(",") if place.strip()]


def absolute_place(place: str) -> str:
    """The location as an absolute path or URI: a worker's working directory differs from the driver's."""
    return place if is_uri(place) else str(Path(place).absolute())


def absolute_places(path: str) -> str:
    """`absolute_place` of each location in a comma list."""
    return ",".join(map(absolute_place, split_places(path)))


def without_credentials(path: str) -> str:
    """The locations without the user names and passwords that URIs may have."""
    return re.sub(r"(?<=://)[^/?@,]*@", "", path)


def local_path(place: str) -> Path | None:
    """Local path of a directory or a `file:` URI; None for any other URI."""
    if place.startswith("file:"):
        return Path(unquote(urlsplit(place).path))
    return None if is_uri(place) else Path(place)
