"""Files of one disk, each operation safe and durable by itself: open, allocate, remove, lock, attributes.

Nothing here knows a second disk or the log as a whole.
"""
