"""A server's log that counts its messages."""

from collections import Counter

from agent.core.log import Logger


class WebLog(Logger):
    """``closed``: closed connections by reason; ``faults``: warnings and errors."""

    def __init__(self) -> None:
        super().__init__("web")
        self.closed: Counter[object] = Counter()
        self.faults = 0

    def info(self, _message: str, /, **fields: object) -> None:
        """Count a closed connection."""
        self.closed[fields["reason"]] += 1

    def warning(self, _message: str, /, **fields: object) -> None:
        """Count a closed connection if the message has a reason, otherwise a fault."""
        if "reason" in fields:
            self.closed[fields["reason"]] += 1
        else:
            self.faults += 1

    error = warning
