"""Errors of measurements."""


class WrongResultError(Exception):
    """A measured operation gave a wrong result; the message is one line."""
