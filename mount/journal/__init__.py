"""The journal of decisions: a bounded file in the runtime directory that outlives the daemons of a mount.

The format of the file, its only writer, what is recorded in it, and its entries in words.
"""
