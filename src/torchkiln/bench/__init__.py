"""The benchmark application: typed functions that the command line is derived from."""
