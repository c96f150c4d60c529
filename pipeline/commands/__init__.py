"""One module per verb of `commitlogfs-pipeline`. None loads Spark before it is called.

The computations of a verb belong to pipeline.jobs.
"""
