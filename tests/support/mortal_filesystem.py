"""A process that is killed between two changes of its output."""

from typing import Any


class Killed(Exception):  # noqa: N818
    pass


class Mortal:
    """A filesystem of pyarrow whose process is killed after so many changes."""

    def __init__(self, real: Any, changes: int) -> None:
        self._real, self._left = real, changes

    def __getattr__(self, name: str) -> Any:
        if name in ("move", "delete_file", "create_dir", "open_output_stream"):
            if self._left == 0:
                raise Killed
            self._left -= 1
        return getattr(self._real, name)
