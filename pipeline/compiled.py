"""How the pipeline compiles its inner loops: numba, kept on disk so that only the first run ever pays for it.

A compiled function may call compiled functions of its own file and of `raw_bytes` only: numba's cache looks at the
time of the file of the function that is called from outside, and would keep a stale copy of what that inlines from
elsewhere (tests/pipeline/test_compiled.py). None of them raises and none of them is bounds-checked: each proves its
indices. An array given to another compiled function is counted in and out, so a loop hands on few of them.
"""

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

import numba

Scalar: TypeAlias = Any
"""A number inside compiled code: an int to Python, a machine word to the compiler."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function) -> _Function:
    """`function` as machine code, without the interpreter lock."""
    return cast("_Function", numba.njit(cache=True, nogil=True)(function))
