"""The daemon: configuration, running exporters, start, reload and stop."""
