"""One module per command; mount.cli puts them together."""
