"""Reads jobs' own logs: failure causes (categories.yml) and training progress (progress.yml).

The exporter reads files that match configured patterns and files that ranks write their output to. A log explains only
the job that owns it by proof. No text of a log becomes a label.
"""

from exporters.job_log.exporter import SPEC, JobLogConfig, JobLogExporter

__all__ = ["SPEC", "JobLogConfig", "JobLogExporter"]
