"""What the kernel tells: processes (/proc) and devices (/sys, PCI)."""
