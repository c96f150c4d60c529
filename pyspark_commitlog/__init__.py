"""What Spark looks for: it loads every installed module whose name begins with `pyspark_` and takes its
DefaultSource for a data source, so that `format("commitlog")` needs no registration."""

from commitlogfs.pipeline.source.data_source import CommitlogDataSource as DefaultSource

__all__ = ["DefaultSource"]
