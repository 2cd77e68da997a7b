"""NIXL-EP."""
