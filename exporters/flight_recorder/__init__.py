"""PyTorch's flight recorder: the process group and the collective that each rank waits in, from dumps after a timeout.

A rank writes its dump when its watchdog, or another rank's watchdog, gives up a collective. With ``ask``, the exporter
also triggers dumps of silent ranks.
"""

from exporters.flight_recorder.exporter import SPEC, FlightRecorderConfig, FlightRecorderExporter

__all__ = ["SPEC", "FlightRecorderConfig", "FlightRecorderExporter"]
