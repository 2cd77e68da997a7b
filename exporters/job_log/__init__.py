"""Reads jobs' own logs: failure causes (categories.yml) and training progress (progress.yml).

The exporter reads files that match configured patterns, and the output files of ranks. A log explains only the job that
provably owns it. Of a log's text, only rank numbers, process groups and valid host names become labels.
"""

from exporters.job_log.exporter import SPEC, JobLogConfig, JobLogExporter

__all__ = ["SPEC", "JobLogConfig", "JobLogExporter"]
