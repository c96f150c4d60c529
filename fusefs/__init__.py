"""Thin adapter between the kernel's FUSE requests and commitlogfs.store."""
