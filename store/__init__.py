"""Segments on disks: no FUSE, no trio.

This room holds what every other room of the store uses: names, records, thresholds, findings, errors. It opens no
disk.
"""
