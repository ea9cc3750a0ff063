"""Molecules in files: xyz, extended xyz, SDF."""
