"""One module per command; mount.cli puts them on the command line."""
