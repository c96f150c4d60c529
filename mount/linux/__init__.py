"""What the daemon and the keeper ask of Linux: mounts, processes, signals, priorities, notification, logs.

Nothing here knows a configuration, a pool or a keeper.
"""
