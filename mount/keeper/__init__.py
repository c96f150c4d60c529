"""The keeper: a small process that keeps a mount's descriptors while daemons come and go.

Nothing of the FUSE adapter or of a pool is loaded here: the keeper must not fail with them.
"""
