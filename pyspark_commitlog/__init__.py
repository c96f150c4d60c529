"""Registers `format("commitlog")`: Spark loads every installed module whose name begins with `pyspark_`, and uses
its DefaultSource as a data source."""

from commitlogfs.pipeline.source.data_source import CommitlogDataSource as DefaultSource

__all__ = ["DefaultSource"]
