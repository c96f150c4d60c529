"""The checks of `commitlogfs doctor`.

Nothing here changes the machine or a disk; printing belongs to the command.
"""
