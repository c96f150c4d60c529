"""Parts that tables of an export share, of any format: the names of a commit's range, sizes and refusals."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from commitlogfs.console.exit_status import ExitCode
from commitlogfs.pipeline.log.errors import OptionError, PipelineError
from commitlogfs.pipeline.log.locations import without_credentials

_MANY_FILES: Final = 100
_SMALL_FILE_BYTES: Final = 32 << 20
"""Engines aim at files of 128 MiB and more; many of less than a quarter make queries slow."""

START: Final = "commitlogfs.start-offset"
"""Property of a commit: where the range begins that it has added."""
END: Final = "commitlogfs.end-offset"


class TableRefusedError(PipelineError):
    """The table cannot be used; nothing was added."""

    exit_code = ExitCode.REFUSED


@dataclass(frozen=True, slots=True)
class TableSize:
    """The present files of a table."""

    name: str
    files: int
    size: int
    """Bytes of all files."""
    compaction: str
    """The engine's own command that makes few files of many."""

    @property
    def needs_compaction(self) -> bool:
        return self.files >= _MANY_FILES and self.size < self.files * _SMALL_FILE_BYTES

    def as_json(self) -> dict[str, Any]:
        """Stable schema (docs/pipeline.md)."""
        return {"table": self.name, "files": self.files, "bytes": self.size, "compact": self.needs_compaction}


def plain_place(output: str) -> str:
    """The output, if a table can name its files. Raises OptionError for a URI with settings or credentials, which
    would come into these names."""
    parts = urlsplit(output)
    if "://" in output and (parts.query or "@" in parts.netloc):
        raise OptionError(
            f"{without_credentials(output)}: a table cannot have an output with settings or keys in its URI; put "
            "these into the environment (AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
        )
    return output


def require_extensible(name: str, before: Iterable[str], wanted: Iterable[str]) -> None:
    """Raises TableRefusedError if a table with the columns `before` has some that are not `wanted`: columns can be
    added, but not left out."""
    missing = [column for column in before if column not in {*wanted}]
    if missing:
        raise TableRefusedError(
            f"{name}: is a table with the columns {', '.join(missing)}, too; export these as well, or "
            "into another table or output"
        )


@contextmanager
def refusals(name: str) -> Iterator[None]:
    """Raises an error of a catalog or a library inside as TableRefusedError, one line about the table."""
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:
        raise TableRefusedError(f"{name}: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
