"""Jobs and searches of the pipeline for logs to which nobody writes: they read the end of a log twice, as always,
but wait a millisecond in between."""

from functools import partial

from support.clocks import SHORT_WAITS

from commitlogfs.pipeline.jobs import apply as apply_job
from commitlogfs.pipeline.jobs import audit as audit_job
from commitlogfs.pipeline.jobs import export as export_job
from commitlogfs.pipeline.jobs import rebuild as rebuild_job
from commitlogfs.pipeline.jobs import stats as stats_job
from commitlogfs.pipeline.log import seek
from commitlogfs.pipeline.source import reader

survey = partial(seek.survey, clock=SHORT_WAITS)
plan_batch = partial(reader.plan_batch, clock=SHORT_WAITS)
rebuild = partial(rebuild_job.rebuild, clock=SHORT_WAITS)
apply_rebuilt = partial(apply_job.apply_rebuilt, clock=SHORT_WAITS)
audit = partial(audit_job.audit, clock=SHORT_WAITS)
plan_export = partial(export_job.plan_export, clock=SHORT_WAITS)
export = partial(export_job.export, clock=SHORT_WAITS)
stats = partial(stats_job.stats, clock=SHORT_WAITS)
grouped_stats = partial(stats_job.grouped_stats, clock=SHORT_WAITS)
