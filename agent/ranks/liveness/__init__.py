"""Facts about the jobs on this node for alert rules: live ranks, ages, and exits that can have caused other exits."""
