"""Places of a mount on this machine, by which a command finds it: runtime directory, locks, control socket, guarded
mountpoint, store root.

Nothing here serves requests or decides what a daemon answers.
"""
