"""`commitlogfs top`: the state of a mount in the terminal, while it changes.

Nothing here waits for a daemon or a disk in the thread that draws, and nothing imports pydantic, trio or psutil:
loading them would delay the first frame.
"""
