"""Train SchNet on QM9 or water clusters: python3 bench.py --config configs/qm9_packed.yml"""

import sys

try:
    from torchkiln.apps.schnet import main
except ModuleNotFoundError as error:
    sys.exit(
        f"bench.py: {error.name} is not installed for {sys.executable}; run `make install`, then "
        "`. .venv/bin/activate` or .venv/bin/python bench.py"
    )
except KeyboardInterrupt:
    print("interrupted", file=sys.stderr)  # noqa: T201
    sys.exit(130)

if __name__ == "__main__":
    sys.exit(main(prog="bench.py"))
