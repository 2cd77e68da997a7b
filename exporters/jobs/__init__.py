"""This node's jobs from their scheduler: running jobs, their GPUs, and how jobs ended.

The sources are files that the scheduler's scripts write and only trusted users may change: /run/rankwatch/jobs
(deploy/slurm), and the mappings of GPUs to jobs for dcgm-exporter and for AMD's device-metrics-exporter.
"""

from exporters.jobs.exporter import SPEC, JobsConfig, JobsExporter

__all__ = ["SPEC", "JobsConfig", "JobsExporter"]
