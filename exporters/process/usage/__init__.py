"""What rank processes use of the node and wait for: CPU, memory, disks, their children, and their control groups."""
