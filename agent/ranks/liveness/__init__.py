"""What rules need to know of the jobs on this node: live ranks, ages and lead exits."""
