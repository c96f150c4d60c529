"""The log as bytes: its segments, where it begins and ends, what is missing, its records, searches by store time.

Nothing here knows Spark, a column or a queue.
"""
