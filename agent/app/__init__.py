"""The program: configuration, exporters under way, start, reload and stop."""
