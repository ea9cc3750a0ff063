"""Epochs of fixed-size batches: order, processes, resume."""
