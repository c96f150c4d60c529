"""Compiled loops over many records at once.

Nothing here opens a file.
"""
