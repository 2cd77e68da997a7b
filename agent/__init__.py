"""How rankwatch runs, isolates, schedules, identifies, judges and serves; it imports no exporter by name."""

__version__ = "0.1.0"
