"""`format("commitlog")`: the Spark data source, its options, columns and sessions.

Jobs that write files belong to pipeline.jobs.
"""
