"""Predicting the memory of a step before it runs."""
