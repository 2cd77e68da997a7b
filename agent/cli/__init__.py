"""The command line: starts the daemon, or queries a running daemon."""
