"""Fixed-size batches, gathered from a store or padded from a list."""
