"""Blocking work on disks, taken out of the event loop: threads per disk, measurements, probes, background commits.

Nothing here answers a request.
"""
