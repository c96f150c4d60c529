"""Whether the disks still have what was written: checksums, scrubs, verdicts on segments, lost writes.

Reading and judging a segment is the work of store/scrub and store/files/hashing.py; here it is given its turn.
"""
