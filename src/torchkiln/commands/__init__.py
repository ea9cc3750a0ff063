"""What the subcommands of `torchkiln` do; `cli.py` only declares them."""
