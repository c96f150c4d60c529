"""What a mount would find and refuse, without mounting.

Nothing here changes a disk.
"""
