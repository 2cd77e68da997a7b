"""The command line: starts the daemon, and has the commands that query a running one."""
