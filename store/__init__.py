"""Segments on disks: no FUSE, no trio.

This room holds what every other room of the store speaks in: names, records, thresholds, findings, errors. It opens
no disk.
"""
