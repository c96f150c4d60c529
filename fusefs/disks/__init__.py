"""Blocking work on disks, outside of the event loop: threads for each disk, measurements, probes, background
commits.

Nothing here answers a request.
"""
