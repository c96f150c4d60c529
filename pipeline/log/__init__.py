"""The log as bytes: its segments, where it begins and ends, what is lost, its records, places in it.

Nothing here knows Spark, a column or a queue.
"""
