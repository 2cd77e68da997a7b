"""Simulate a job: real processes that write NCCL Inspector files, for the demo, benchmarks and tests."""
