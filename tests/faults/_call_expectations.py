"""Which calls each scenario is known to make: a shim that misses them would find no harm either."""

from __future__ import annotations

# Written to a temporary folder, flushed, moved into place.
_WRITTEN = {"open", "create", "write", "sync", "rename", "unlink", "mkdir"}
_READ = {"open", "read"}
# torch unpacks native code into a temporary folder.
_UNPACKED = _READ | {"create", "write", "mkdir", "unlink"}

EXPECTED_CALLS: dict[str, set[str]] = {
    # safetensors sets the length of its file.
    "saving a checkpoint": _WRITTEN | {"read", "truncate"},
    "saving the first checkpoint": _WRITTEN | {"truncate"},
    "loading a checkpoint": _READ,
    "storing an executable": _WRITTEN,
    "storing an executable in a full cache": _WRITTEN,
    "remembering a program": _WRITTEN,
    "finding an executable": _READ | {"create"},
    "replacing a store": _WRITTEN | {"read", "map"},
    "saving a store": _WRITTEN | {"read", "map"},
    "reading a store": _READ | {"map"},
    "saving results": _WRITTEN,
    "loading results": _READ,
    "writing a report": _WRITTEN,
    "saving a plan": _WRITTEN,
    "loading a plan": _READ,
    "keeping arrays": _WRITTEN,
    "finding arrays": _READ,
    "writing HDF5": _WRITTEN,
    "reading HDF5": _READ,
    "writing xyz": _WRITTEN,
    "reading xyz": _READ,
    "reading QM9's xyz": _READ,
    "writing CSV": _WRITTEN,
    "writing QM9's files": _WRITTEN | {"read"},
    "building a native helper": _WRITTEN | {"read"},
    # In a folder of its maker's; who puts it into the cache is tested above.
    "packaging a program": {"create", "write"},
    "finding a program": _UNPACKED,
    "exporting a program": _WRITTEN,
    "loading an exported program": _UNPACKED,
    "saving a model of PopTorch": _WRITTEN | {"read"},
    "loading a model of PopTorch": _UNPACKED,
}

# Who only reads does not mind a full disk.
_READERS = ("a checkpoint", "results", "a plan")
NO_CALLS = {(f"loading {what}", "full disk") for what in _READERS}
NO_CALLS |= {(f"reading {what}", "full disk") for what in ("a store", "HDF5", "xyz", "QM9's xyz")}
NO_CALLS |= {("finding arrays", "full disk")}
