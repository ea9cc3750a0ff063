"""Graphs as flat arrays, in memory or mapped from a directory."""
