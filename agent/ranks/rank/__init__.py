"""One rank process: facts from /proc, owner, claimed rank and job, exit and verdict; and the exits of one job."""
