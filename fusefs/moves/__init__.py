"""Moves of segments between disks: one move, what is left of the file that was moved, and the drains of disks.

Which disk takes a segment, and how fast, is decided in store.moves.
"""
