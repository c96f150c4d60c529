"""The state of a running daemon as it reports it: status document, metrics, growth, forced deletion, control API.

Nothing here changes the mount.
"""
