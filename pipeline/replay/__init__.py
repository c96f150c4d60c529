"""Messages of the log, sent into another cluster in their order.

Nothing here needs a Spark session: the order of a queue is that of one reader.
"""
