"""Jobs of this node by their scheduler: which run here, on which GPUs, and how they ended.

The sources are files that the scheduler's scripts write and only root may change: /run/rankwatch/jobs (deploy/slurm),
the mapping of GPUs to jobs that sites make for dcgm-exporter, and that of AMD's device-metrics-exporter.
"""

from exporters.jobs.exporter import SPEC, JobsConfig, JobsExporter

__all__ = ["SPEC", "JobsConfig", "JobsExporter"]
