"""How large the blocks of a store's files are that have a checksum of their own."""

# Small, so that the first shuffled batch, whose graphs lie all over the files, comes soon.
BLOCK_BYTES = 2**16
