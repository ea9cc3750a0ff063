"""`torch_sparse` as far as graphium needs it: a class that nothing is an instance of."""


class SparseTensor:
    """Only named in `isinstance` and in annotations."""
