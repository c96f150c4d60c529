"""The C extension `_passthrough`, or the reason why it is missing.

It supplies a function that pyfuse3 calls, so it is loaded before pyfuse3, with its symbols visible to pyfuse3.
Without it (not built, or libfuse older than 3.14) the daemon works without passthrough and without takeovers, and
reports it.
"""

import os
import sys
from types import ModuleType


def _load() -> tuple[ModuleType | None, str]:
    if "pyfuse3" in sys.modules:
        return None, "pyfuse3 was loaded before commitlogfs.fusefs"
    flags = sys.getdlopenflags()
    sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)
    try:
        from commitlogfs.fusefs.kernel import _passthrough
    except ImportError as error:
        return None, f"the C extension cannot be loaded ({error})"
    finally:
        sys.setdlopenflags(flags)
    return _passthrough, ""


module, reason = _load()
"""The extension and an empty reason, or None and the reason."""
