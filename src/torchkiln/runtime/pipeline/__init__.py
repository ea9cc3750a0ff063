"""A step in several stages, each of which another process runs."""
