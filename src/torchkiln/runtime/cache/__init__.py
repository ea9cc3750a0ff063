"""Executables that were compiled before, found by what they were compiled from."""
