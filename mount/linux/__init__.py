"""Services of Linux for the daemon, the keeper and the commands: mounts, processes, signals, priorities,
notification, logs.

Nothing here knows a configuration, a pool or a keeper.
"""
