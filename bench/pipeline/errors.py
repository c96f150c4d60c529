"""A measurement that cannot be trusted is none."""


class WrongResultError(Exception):
    """What was measured did not do what it was to do; one line."""
