"""How the pipeline compiles its inner loops: numba, kept on disk so that only the first run ever pays for it.

A compiled function may call compiled functions of its own file and of `raw_bytes` only: numba's cache looks at
the time of the file of the function that is called from outside, and would keep a stale copy of what that inlines
from elsewhere (tests/pipeline/arrays/test_compiled.py). None of them raises and none of them is bounds-checked:
each proves its indices. An array given to another compiled function is counted in and out, so a loop hands on few
of them.
"""

import logging
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias, TypeVar, cast

import numba

Scalar: TypeAlias = Any
"""A number inside compiled code: an int to Python, a machine word to the compiler."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


_NO_PLACE = "no locator available"
"""In what numba raises where it can write neither beside the source nor below the user's home."""

_logger = logging.getLogger(__name__)


def compiled(function: _Function) -> _Function:
    """`function` as machine code, without the interpreter lock."""
    try:
        return cast("_Function", numba.njit(cache=True, nogil=True)(function))
    except RuntimeError as error:
        if _NO_PLACE not in str(error):
            raise
    _warn_of_no_cache()
    return cast("_Function", numba.njit(nogil=True)(function))


@cache
def _warn_of_no_cache() -> None:
    _logger.warning(
        "no folder for compiled code can be written, so every process compiles anew: let NUMBA_CACHE_DIR name one "
        "that can"
    )
