"""The queries of jobs, their schedules, and the stored reports."""
