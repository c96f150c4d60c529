"""Scrub: reads sealed segments from their disks, and decides which of them are damaged, where, and in which way.

Verdicts, the position of a scrub and its schedule belong here. The task of each disk, and everything that waits, is
in fusefs/integrity.
"""
