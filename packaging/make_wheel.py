"""Builds the wheels of torchkiln and of the names that it provides, and tests them from outside.

    python packaging/make_wheel.py [--wheels dist] [--build_only]

Everything is built and tried below a temporary folder, in environments that were made for it, where
nothing leads back to the repository. The first command that fails ends it with exit code 1.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from _steps import say
from _wheel_build import ROOT, build_wheels
from _wheel_checks import check_commands, check_neighbours


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the wheels and test them from outside.")
    parser.add_argument("--wheels", type=Path, default=ROOT / "dist", help="where wheels are put")
    parser.add_argument("--build_only", action="store_true", help="do not test them")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="torchkiln-wheel-") as folder:
        scratch = Path(folder).resolve()
        say("Building")
        wheels = build_wheels(args.wheels.resolve(), scratch)
        if not args.build_only:
            say("A package poptorch that is not ours")
            check_neighbours(wheels[0], scratch)
            say("Torchkiln in a clean environment (several minutes)")
            check_commands(wheels, scratch)
    for wheel in wheels:
        say(f"{wheel} ({wheel.stat().st_size / 1e6:.2f} MB)")


if __name__ == "__main__":
    main()
