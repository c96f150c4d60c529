"""The checks of a mount, made without mounting.

Nothing here changes a disk.
"""
