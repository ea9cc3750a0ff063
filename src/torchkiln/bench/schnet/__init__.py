"""The SchNet benchmark: molecules in packed batches, trained by whole compiled steps."""
