"""The checks of `commitlogfs doctor`.

Nothing here changes anything; printing belongs to the command.
"""
