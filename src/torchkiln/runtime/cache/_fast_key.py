"""The key that needs no tracing: a digest of everything forward's Python code could depend on.

Walks from the module through its attributes, the classes and functions it uses, what these close
over and the globals they name. User functions count by their code and the values they reach;
library code counts by the version of its file. Whatever cannot be told apart for sure (opaque
objects, reading files, clocks or the environment) gives no key: the program is then traced and its
graph compared, which is slower and always right.
"""

from __future__ import annotations

import builtins
import dis
import enum
import functools
import hashlib
import inspect
import os
import sys
import sysconfig
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchkiln.core._own_code import OWN_FOLDERS
from torchkiln.torch_internals._modules import BUFFERS, MODULES, PARAMETERS

_STDLIB = sysconfig.get_paths()["stdlib"]
_SITE = tuple({sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]})

# Names in code whose results no digest of the code can foresee.
_UNFORESEEABLE = frozenset(
    {"eval", "exec", "open", "input", "globals", "locals", "vars", "__import__", "import_module"}
    | {"environ", "getenv", "urandom", "random", "randrange", "shuffle"}
    | {"time", "time_ns", "perf_counter", "monotonic", "datetime", "now"}
)
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis))
_DESCRIBED = (torch.dtype, torch.device, torch.Size, torch.memory_format, Path, slice, range)
_LARGE_BYTES = 2**20
_DESCRIPTORS = (
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.WrapperDescriptorType,
)


class _Unsure(Exception):  # noqa: N818 - a signal, not an error
    """Something cannot be told apart for sure."""


def fast_key(module: nn.Module, *parts: Any) -> str | None:
    """Return a digest of the module and of plain `parts`; None if it would not be safe."""
    walker = _Walker()
    try:
        _refuse_patched_libraries()
        walker.add_module(module)
        walker.add(parts)
    except (_Unsure, RecursionError):
        return None
    return walker.digest.hexdigest()


class _Walker:
    """Feeds a digest with values, each object once."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self._seen: dict[int, int] = {}
        # Keeps temporary objects alive: a reused id would look like a known object.
        self._alive: list[Any] = []

    def text(self, *words: Any) -> None:
        self.digest.update("\x1f".join(str(word) for word in words).encode() + b"\x1e")

    def _known(self, value: Any) -> bool:
        number = self._seen.get(id(value))
        if number is not None:
            self.text("again", number)
            return True
        self._seen[id(value)] = len(self._seen)
        self._alive.append(value)
        return False

    def add_module(self, module: nn.Module) -> None:
        for prefix, child in module.named_modules(remove_duplicate=False):
            self.text("module", prefix)
            if self._known(child):
                continue
            self.add_class(type(child))
            for key in sorted(child.__dict__):
                value = child.__dict__[key]
                if key == MODULES:
                    continue
                if key in (PARAMETERS, BUFFERS):
                    for name, tensor in value.items():
                        self.text(key, name)
                        self.add_tensor_form(tensor)
                elif isinstance(value, Tensor):
                    # Lifted to an input of the program: its value does not matter.
                    self.text("attribute", key)
                    self.add_tensor_form(value)
                else:
                    self.text("attribute", key)
                    self.add(value)

    def add_tensor_form(self, tensor: Tensor | None) -> None:
        if tensor is None:
            self.text("none")
        elif not self._known(tensor):
            if getattr(tensor, "__dict__", None):
                self.add(dict(tensor.__dict__))  # marks that the user put on it
            self.text(
                tensor.shape,
                tensor.stride(),
                tensor.dtype,
                tensor.device.type,
                tensor.requires_grad,
            )

    def add(self, value: Any) -> None:
        """Feed any value; raises `_Unsure` for one that cannot be described."""
        if isinstance(value, enum.Enum):
            self.text("enum", type(value).__qualname__, value.name)
        elif isinstance(value, (*_PLAIN, *_DESCRIBED)):
            self.text(type(value).__name__, repr(value))
        elif isinstance(value, type):
            self.add_class(value)
        elif self._known(value):
            return
        elif isinstance(value, list | tuple):
            self.text(type(value).__qualname__, len(value))
            for entry in value:
                self.add(entry)
        elif isinstance(value, Mapping) and isinstance(value, dict):
            self.text(type(value).__qualname__, len(value))
            for key, entry in value.items():
                self.add(key)
                self.add(entry)
        elif isinstance(value, set | frozenset):
            self.text("set", sorted(map(repr, value)))
        elif isinstance(value, Tensor):
            self._add_tensor_value(value)
        elif isinstance(value, nn.Module):
            self.add_module(value)
        else:
            self._add_object(value)

    def _add_tensor_value(self, tensor: Tensor) -> None:
        self.text(tensor.shape, tensor.dtype, tensor.device.type)
        if tensor.numel() * tensor.element_size() > _LARGE_BYTES or tensor.layout != torch.strided:
            raise _Unsure("a large tensor outside the module")
        data = tensor.detach().cpu().contiguous()
        if data.numel():
            self.digest.update(data.view(-1).view(torch.uint8).numpy().tobytes())

    def _add_object(self, value: Any) -> None:
        if isinstance(value, types.MethodType):
            self.add(value.__func__)
            self.add(value.__self__)
        elif isinstance(value, types.FunctionType):
            self.add_function(value)
        elif isinstance(value, functools.partial):
            self.add((value.func, value.args, value.keywords))
        elif isinstance(value, types.BuiltinFunctionType | types.MethodDescriptorType):
            self.text("builtin", getattr(value, "__module__", ""), value.__qualname__)
        elif isinstance(value, types.ModuleType):
            self._add_python_module(value)
        elif isinstance(value, property):
            self.add((value.fget, value.fset))
        elif isinstance(value, staticmethod | classmethod):
            self.add(value.__func__)
        elif type(value).__module__ == "numpy":
            self._add_array(value)
        elif _is_library(type(value)) and not hasattr(value, "__dict__"):
            # Native objects of libraries (operators, generators) have no state that we can see.
            if callable(value):
                self.text("native", type(value).__qualname__, getattr(value, "__qualname__", ""))
                self.text(str(getattr(value, "__name__", "")), str(value))
            else:
                raise _Unsure(f"opaque {type(value)}")
        elif hasattr(value, "__dict__"):
            self.add_class(type(value))
            if hasattr(type(value), "__slots__") and not _is_library(type(value)):
                self.add([getattr(value, name, None) for name in type(value).__slots__])
            self.add(dict(value.__dict__))
        elif hasattr(type(value), "__slots__"):
            self.add_class(type(value))
            self.add([getattr(value, name, None) for name in type(value).__slots__])
        else:
            raise _Unsure(f"opaque {type(value)}")

    def _add_array(self, value: Any) -> None:
        if not hasattr(value, "tobytes") or value.nbytes > _LARGE_BYTES or value.dtype.hasobject:
            raise _Unsure("a large or opaque array")
        self.text(value.shape, value.dtype)
        self.digest.update(value.tobytes())

    def add_class(self, kind: type) -> None:
        """Feed a class: library classes by their file, user classes by their methods."""
        if self._known(kind):
            return
        self.text("class", kind.__module__, kind.__qualname__)
        if _is_library(kind):
            self._add_file(kind.__module__)
            self._add_patches(kind)
            return
        for base in kind.__mro__[1:]:
            self.add_class(base)
        for name, member in sorted(kind.__dict__.items()):
            if name in ("__dict__", "__weakref__", "__doc__", "__abstractmethods__", "_abc_impl"):
                continue
            if name == "__init__" and issubclass(kind, nn.Module):
                continue  # what it did is in the attributes; forward does not run it
            self.text("member", name)
            if isinstance(member, _DESCRIPTORS) or type(member).__name__ == "_tuplegetter":
                continue
            self.add(member)

    def _add_patches(self, kind: type) -> None:
        """Feed functions of the user's that were put into a library class."""
        if not issubclass(kind, nn.Module):
            return
        for base in kind.__mro__:
            for name, member in base.__dict__.items():
                if _is_user_function(member):
                    self.text("patch", name)
                    self.add(member)

    def add_function(self, function: types.FunctionType) -> None:
        """Feed a function: library ones by their file, user ones by code and what it reaches."""
        self.text("function", function.__module__, function.__qualname__)
        if _is_library_file(function.__code__.co_filename):
            self._add_file(function.__module__)
        else:
            self._add_code(function.__code__, function.__globals__)
        self.add(function.__defaults__)
        self.add(function.__kwdefaults__)
        for cell in function.__closure__ or ():
            try:
                self.add(cell.cell_contents)
            except ValueError:  # an empty cell
                self.text("empty")
        wrapped = getattr(function, "__wrapped__", None)
        if wrapped is not None:
            self.add(wrapped)

    def _add_code(self, code: types.CodeType, scope: Mapping[str, Any]) -> None:
        self.digest.update(code.co_code)
        self.text(code.co_names, code.co_varnames, code.co_freevars)
        if not _UNFORESEEABLE.isdisjoint(code.co_names):
            raise _Unsure("code that reads files, clocks or the environment")
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._add_code(constant, scope)
            elif isinstance(constant, frozenset):
                self.text("frozenset", sorted(map(repr, constant)))
            else:
                self.text(repr(constant))
        self._add_local_imports(code)
        for name in code.co_names:
            if name in scope:
                value = scope[name]
                self.text("global", name)
                self.add(value)
                if isinstance(value, types.ModuleType) and not _is_library_file(_file(value)):
                    self._add_module_attributes(value, code)

    def _add_local_imports(self, code: types.CodeType) -> None:
        """Feed what a function imports when it runs."""
        for instruction in dis.get_instructions(code):
            if instruction.opname != "IMPORT_NAME":
                continue
            module = sys.modules.get(instruction.argval)
            if module is None:
                raise _Unsure("a local import of a module that is not loaded, or a relative one")
            self.add(module)
            if not _is_library_file(_file(module)):
                self._add_module_attributes(module, code)

    def _add_module_attributes(self, module: types.ModuleType, code: types.CodeType) -> None:
        """Feed the attributes of a user's module that the code names, at any depth."""
        if "getattr" in code.co_names:
            raise _Unsure("attributes of a module looked up by computed names")
        for name in code.co_names:
            if name in module.__dict__:
                value = module.__dict__[name]
                self.text("attribute", name)
                self.add(value)
                if (
                    isinstance(value, types.ModuleType)
                    and value is not module
                    and not _is_library_file(_file(value))
                ):
                    self._add_module_attributes(value, code)

    def _add_python_module(self, module: types.ModuleType) -> None:
        self.text("python module", module.__name__)
        self._add_file(module.__name__)

    def _add_file(self, name: str | None) -> None:
        """Feed the version of a file that holds code: size and time for libraries, else content."""
        module = sys.modules.get(name or "")
        file = _file(module) if module is not None else ""
        if not file or name in ("builtins", "__main__") or file.startswith(_STDLIB + os.sep):
            self.text("file", name)
            return
        self.text("file", _file_version(file))


def _refuse_patched_libraries() -> None:
    """Raise `_Unsure` if somebody replaced functions that library code calls."""
    for scope in (torch.__dict__, torch.nn.functional.__dict__, torch.Tensor.__dict__):
        for value in scope.values():
            if _is_user_function(value):
                raise _Unsure("a function of torch was replaced")


def _is_user_function(value: Any) -> bool:
    return isinstance(value, types.FunctionType) and not _is_library_file(
        value.__code__.co_filename
    )


@functools.cache
def _file_version(file: str) -> str:
    # Read once per process: Python, too, sees the file as it was when it was imported.
    try:
        status = os.stat(file)
        if file.startswith(_SITE):
            return f"{file} {status.st_size} {status.st_mtime_ns}"
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return file


def _file(module: Any) -> str:
    return getattr(module, "__file__", None) or ""


def _is_library_file(file: str) -> bool:
    return file.startswith((*_SITE, _STDLIB, *OWN_FOLDERS, "<frozen"))


def _is_library(kind: type) -> bool:
    if kind.__module__ == "builtins" or hasattr(builtins, kind.__name__):
        return True
    module = sys.modules.get(kind.__module__)
    file = _file(module)
    if not file:
        # Compiled modules have no file; a notebook's `__main__` has none either, and is the user's.
        return kind.__module__ != "__main__" and inspect.getmodule(kind) is not None
    return _is_library_file(file)
