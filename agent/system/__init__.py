"""Read the kernel's interfaces: processes (/proc) and devices (/sys, PCI, netlink)."""
