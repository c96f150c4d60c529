"""Spark jobs over a log: importable functions; the command line is a thin layer over them."""
