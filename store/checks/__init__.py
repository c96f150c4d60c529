"""Checks of disks: whether one answers, can be read and written, and still lies at its path.

They block as long as a disk hangs. Their results are recorded in store/disks/health.py.
"""
