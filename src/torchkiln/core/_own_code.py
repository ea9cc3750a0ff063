"""Where this project's own code lies: what tells it from the user's."""

from __future__ import annotations

from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2]
OWN_PACKAGES = ("torchkiln", "popdist", "poptorch", "poptorch_geometric")


def own_folders(sources: Path) -> tuple[str, ...]:
    """Return the folders of our own packages: beside each other in a checkout, one in a wheel.

    In a wheel the façades lie inside torchkiln (setup.py tells why). A folder `poptorch` beside it
    is then somebody else's.
    """
    if (sources / "torchkiln" / "_facades").is_dir():
        return (str(sources / "torchkiln"),)
    return tuple(str(sources / name) for name in OWN_PACKAGES)


OWN_FOLDERS = own_folders(SOURCES)


def require_own_poptorch(version: str, where: str | None, *, package: str) -> None:
    """Raise if another package is imported as `poptorch` than Torchkiln's: façades belong together.

    Args:
        version: Of the imported one.
        where: Its file.
        package: Who needs it.

    Raises:
        ImportError: naming the other one, and what to do.
    """
    if "torchkiln" not in version:
        raise ImportError(
            f"{package} of Torchkiln needs Torchkiln's poptorch, but poptorch {version} in {where} "
            f"is in use; uninstall that one, or install the {package} that belongs to it",
            name="poptorch",
        )
