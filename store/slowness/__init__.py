"""Slow disks: which device needs much longer for an operation than its peers, and than itself before.

Figures and rules belong here, both pure. The counters are read in store/files, and a slow disk is recorded in
store/disks and probed in fusefs/disks.
"""
