"""Command line, configuration and life of the daemon."""
