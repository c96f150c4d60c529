"""The configuration of one mount: TOML in, frozen values out, and the import of a broker.conf.

Nothing here opens a disk of a pool or asks a daemon.
"""
