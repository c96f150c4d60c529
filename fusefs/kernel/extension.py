"""The C extension `_passthrough`, or the reason why there is none.

It supplies a function that pyfuse3 calls, so it is loaded before pyfuse3 and with its symbols visible to it. Where
it is absent or does not fit (libfuse older than 3.14), everything goes on without passthrough and without surviving
the daemon's death, and says so.
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
"""The extension, and an empty reason; or None, and why."""
