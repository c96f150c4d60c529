"""The access key for a cluster that requires one, from a file: a command line is visible to all users."""

import os
import stat
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from commitlogfs.console.errors import RefusedError, UsageError
from commitlogfs.pipeline.log.errors import os_reason

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class Credentials:
    access_key: str
    secret_key: str = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises RefusedError if another user has any access to the file, UsageError if it has no two keys."""
        try:
            with path.open("rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                if mode & _OTHERS:
                    raise RefusedError(f"{path}: other users have access (mode {mode:04o}); run chmod 600 {path}")
                document = tomllib.load(file)
        except OSError as error:
            raise UsageError(f"--credentials {path}: cannot be read ({os_reason(error)})") from None
        except ValueError:  # its text could show a part of a key
            document = {}
        values = [document.get(name) for name in ("access_key", "secret_key")]
        if len(document) != len(values) or not all(isinstance(value, str) and value for value in values):
            raise UsageError(
                f'--credentials {path}: must have two lines, access_key = "..." and secret_key = "...", and no more'
            )
        return cls(*map(str, values))
