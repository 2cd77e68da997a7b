"""The command line: the daemon and the commands that ask a running one."""
