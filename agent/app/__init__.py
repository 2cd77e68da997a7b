"""The program: configuration, running exporters, start, reload and stop."""
