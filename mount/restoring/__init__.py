"""Filling the gaps of a log, and repairing damaged segments, with copies from outside the pool: a slave, a backup,
an object store.

Only commands use this. The daemon takes in what was checked here.
"""
