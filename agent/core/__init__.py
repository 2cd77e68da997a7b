"""Shared basics: time, logs, threads, metric declarations, names of ranks, checkpoint, systemd."""
