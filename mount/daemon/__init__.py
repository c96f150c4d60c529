"""Life of the daemon: start, takeover, service, hand-over, end.

What a request does belongs to fusefs, what a disk holds to store.
"""
