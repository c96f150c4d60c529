"""Files that a broker derives from its log, and the settings that decide about them: dispatch, queues, index.

Nothing here knows Spark.
"""
