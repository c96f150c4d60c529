"""Slow disks: which device needs much longer for an operation than its peers, and than itself before.

The kernel's counters are read here (load.py); figures and rules are pure. A slow disk is recorded in store/disks,
and probed in fusefs/disks.
"""
