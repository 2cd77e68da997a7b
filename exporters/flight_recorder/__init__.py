"""PyTorch's flight recorder: which collective of which process group each rank waits in, by the dumps of a timeout.

A rank writes its dump when its watchdog, or that of another rank, gives up a collective. Nobody is asked for one.
"""

from exporters.flight_recorder.exporter import SPEC, FlightRecorderConfig, FlightRecorderExporter

__all__ = ["SPEC", "FlightRecorderConfig", "FlightRecorderExporter"]
