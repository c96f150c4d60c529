"""The command line and the life of the daemon.

This room holds the entry points only: the commands, the daemon and mount(8)'s helper.
"""
