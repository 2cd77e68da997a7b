"""The NVLinks of GPUs: asking the driver, what it says of each link over time, and the fabric that they make."""
