"""The agent: runs and isolates exporters, identifies and judges ranks, serves metrics; imports no exporter by name."""

__version__ = "0.2.0"
