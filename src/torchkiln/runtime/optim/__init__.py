"""Optimisers: what of them is compiled in, their numbers, their state."""
