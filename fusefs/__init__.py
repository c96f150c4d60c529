"""The FUSE adapter: requests of the kernel turned into calls of the store.

This room holds the request handlers, the connection and the translation of errors. No policy, no blocking call.
"""

# Before anything that imports pyfuse3: the extension has to be loaded first.
from commitlogfs.fusefs.kernel import extension as extension
