"""The system profile: one time line of all threads and processes of a run."""
