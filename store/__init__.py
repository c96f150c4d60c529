"""Segments on disks: no FUSE, no trio."""
