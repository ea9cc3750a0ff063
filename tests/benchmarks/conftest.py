"""Modules of benchmarks/ are found beside each other, as when one of its scripts runs."""

import sys
from pathlib import Path

# Last, so that no name of a script hides a package.
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
