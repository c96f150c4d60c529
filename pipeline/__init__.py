"""The log as a table: decoding, the Spark data source, and the jobs that rebuild, audit and export.

This directory holds the entry points only.
"""
