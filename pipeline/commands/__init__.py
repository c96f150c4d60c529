"""One module per verb of `commitlogfs-pipeline`. None loads Spark before it is called.

What a verb computes belongs to pipeline.jobs.
"""
