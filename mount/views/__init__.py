"""Documents and records as text and pictures for people. Pure.

Nothing here reads a file or a socket.
"""
