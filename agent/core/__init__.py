"""Shared modules: time, logs, threads, metric declarations, rank labels, checkpoint, systemd."""
