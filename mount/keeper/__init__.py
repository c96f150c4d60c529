"""The keeper: a small process that keeps a mount's descriptors while daemons come and go.

The FUSE filesystem and the pool are not loaded here: the keeper must not fail with them.
"""
