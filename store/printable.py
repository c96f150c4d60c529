"""Text from outside made safe for a terminal: names and values may hold any character."""


def printable(text: str, *, keep: str = "") -> str:
    """`text` with escapes for every character that could end a line or control a terminal, except those in
    `keep`."""
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)
