"""`python -m torchkiln` is the command `torchkiln`."""

import sys

from torchkiln.cli import main

if __name__ == "__main__":
    sys.exit(main())
