"""The hardware of this node: its GPUs and NICs, their health checks and errors."""
