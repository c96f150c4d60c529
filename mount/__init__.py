"""The command `commitlogfs`, the daemon and its keeper.

This room holds the entry points only: the command line, the daemon and mount(8)'s helper.
"""
