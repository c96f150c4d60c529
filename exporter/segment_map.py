"""The segments of a log as columns of equal width over its offsets. Pure."""

from collections.abc import Collection, Sequence
from typing import Any

MOST_COLUMNS = 2000


def draw(answer: dict[str, Any], columns: int, damaged: Collection[int] = ()) -> dict[str, Any]:
    """`answer`: of the verb `segments`; `damaged`: base offsets of damaged segments. A column has the number of the
    disk that has all of its segments, and says whether one is missing."""
    size, segments = answer["segment_size"], answer["segments"]
    drawn = {
        "name": answer["name"],
        "segment_size": size,
        "disks": answer["disks"],
        "first_offset": segments[0][0] if segments else None,
        "last_offset": segments[-1][0] if segments else None,
        "columns": [],
    }
    if not segments:
        return drawn
    first = segments[0][0]
    slots = (segments[-1][0] - first) // size + 1
    columns = min(columns, slots)
    found: list[list[Sequence[int]]] = [[] for _ in range(columns)]
    for segment in segments:
        found[(segment[0] - first) // size * columns // slots].append(segment)
    bad = frozenset(damaged)
    for index, inside in enumerate(found):
        begin, end = -(-index * slots // columns), -(-(index + 1) * slots // columns)
        disks = {disk for _, disk in inside}
        drawn["columns"].append(
            {
                "start": first + begin * size,
                "segments": len(inside),
                "disk": disks.pop() if len(disks) == 1 else None,
                "gap": len(inside) < end - begin,
                "damaged": any(base in bad for base, _ in inside),
            }
        )
    return drawn
