"""What a running daemon reports about itself: status document, metrics, growth, forced deletion, control API.

Nothing here changes the mount.
"""
