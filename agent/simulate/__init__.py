"""A simulated job: real processes that write NCCL Inspector files, for the demo, the benchmarks and the tests."""
