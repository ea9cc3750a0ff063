"""The one thing that pyproject.toml cannot say: where `poptorch` lies in a wheel.

The wheel carries the façades `poptorch`, `poptorch_geometric` and `popdist` inside
`torchkiln/_facades`, and a `.pth` file that puts that folder at the end of Python's search path.
So `import poptorch` works after `pip install torchkiln`, but a package of that name that is
installed in its own right always comes first, and no two distributions own the same file.
docs/architecture.md tells more.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

FACADES = ("popdist", "poptorch", "poptorch_geometric")


class BuildWithFacades(build_py):
    """Builds the packages, then moves the façades to their place."""

    def run(self) -> None:
        """Run the usual build; an editable install takes everything from src/ as it is."""
        super().run()
        if self.editable_mode:
            return
        library = Path(self.build_lib)
        home = library / "torchkiln" / "_facades"
        home.mkdir(exist_ok=True)
        for name in FACADES:
            shutil.rmtree(home / name, ignore_errors=True)
            shutil.move(library / name, home / name)
        # A plain path, relative to the folder that the file is installed in: no code runs.
        (library / "torchkiln_facades.pth").write_text("torchkiln/_facades\n")


setup(cmdclass={"build_py": BuildWithFacades})
