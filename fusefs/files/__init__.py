"""Operations on names and files, as requests need them: open, list, create, remove, change.

The shape of a request handler belongs to fusefs.operations.
"""
