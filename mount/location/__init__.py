"""Where a mount is on this machine, and how a command finds it: runtime directory, locks, control socket, guarded
mountpoint, store root.

Nothing here serves requests or decides what a daemon answers.
"""
