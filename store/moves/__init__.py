"""Moving a segment to another disk: the copy and its mark, the choice of a disk, the rate.

Nothing here knows the log as a whole.
"""
