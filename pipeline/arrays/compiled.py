"""Compiles the pipeline's inner loops with numba, and caches them on disk so that only the first run compiles.

A compiled function may call compiled functions of its own file and of `raw_bytes` only: numba's cache checks the
modification time of the file of the function that is called from outside, and would keep a stale copy of code
inlined from other files (tests/pipeline/arrays/test_compiled.py). No compiled function raises, and none is
bounds-checked: each checks its indices. Each array argument costs reference counting on every call, so a loop
passes on few of them.
"""

import logging
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias, TypeVar, cast

import numba

Scalar: TypeAlias = Any
"""An integer in compiled code: an int to Python, a machine word to the compiler."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


_NO_PLACE = "no locator available"
"""Part of the error that numba raises where it can write neither beside the source nor below the user's home."""

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
        "no directory for compiled code is writable, so every process compiles again; set NUMBA_CACHE_DIR to a "
        "writable directory"
    )
