"""The FUSE filesystem: it turns requests of the kernel into calls of the store.

This directory holds the request handlers, the connection and the translation of errors: no policy, no blocking
call.
"""

# The extension has to be loaded before pyfuse3, so it is imported before all modules that import pyfuse3.
from commitlogfs.fusefs.kernel import extension as extension
