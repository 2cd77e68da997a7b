"""What every room uses: time, logs, threads, metric declarations, the names of ranks, the checkpoint, systemd."""
