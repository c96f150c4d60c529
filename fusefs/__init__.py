"""The FUSE adapter: requests of the kernel turned into calls of the store."""

# Before anything that imports pyfuse3: the extension has to be loaded first.
from commitlogfs.fusefs import extension as extension
