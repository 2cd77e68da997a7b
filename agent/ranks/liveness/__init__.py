"""What rules need to know of the jobs on this node: ranks that live, ages, and the exits that came first."""
