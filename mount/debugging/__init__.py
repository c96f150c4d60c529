"""The archive of `commitlogfs debug`: its pieces, how each is collected within a deadline, and how it is written.

Nothing here changes the mount or a disk, and no piece holds content or topics of messages.
"""
