"""What requests do to names and files: open, list, create, remove, change.

The shape of a request handler belongs to fusefs.operations.
"""
