"""The exporter: one process without rights of its own that shows the state of all mounts of a machine over HTTP.

Discovery of the mounts, their latest figures, the HTTP application and its page belong here. It asks the daemons at
their status sockets; nothing of this package runs in a daemon.
"""
