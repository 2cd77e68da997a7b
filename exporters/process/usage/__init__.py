"""Usage and waits of rank processes on the node: CPU, memory, disks, their children, and their control groups."""
