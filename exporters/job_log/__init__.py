"""What jobs write into their own logs: why they fail, by categories.yml, and how far a training is, by progress.yml.

The files are those of configured patterns and those that ranks write their output to. A log explains the job that it is
proven to be of and nothing else; no text of it gets into a label.
"""

from exporters.job_log.exporter import SPEC, JobLogConfig, JobLogExporter

__all__ = ["SPEC", "JobLogConfig", "JobLogExporter"]
