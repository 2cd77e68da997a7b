"""Which job id and rank number each process is given, where several claim one or several share one environment."""
