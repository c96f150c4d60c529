"""Spark jobs over a log, as functions to import.

The command line is a thin layer over them; nothing here prints.
"""
