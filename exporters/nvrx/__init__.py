"""NVRx: restart cycles."""
