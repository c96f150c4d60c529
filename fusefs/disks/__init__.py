"""Blocking work on disks, outside of the event loop: threads for each disk, measurements, probes, checks, and
background commits.

Nothing here answers a request.
"""
