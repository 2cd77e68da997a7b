"""This node's jobs from their scheduler: running jobs, their GPUs, and how jobs ended.

The sources are files that the scheduler's scripts write and only root may change: /run/rankwatch/jobs (deploy/slurm),
the mapping of GPUs to jobs that sites make for dcgm-exporter, and the mapping of AMD's device-metrics-exporter.
"""

from exporters.jobs.exporter import SPEC, JobsConfig, JobsExporter

__all__ = ["SPEC", "JobsConfig", "JobsExporter"]
