"""The key without tracing: whatever forward could depend on must change it."""

import importlib.util
import os
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

from torchkiln.runtime.cache import _fast_key
from torchkiln.runtime.cache._fast_key import fast_key

MODEL = """
    import torch
    from torch import nn
    {imports}
    SCALE = {scale}

    def helper(x):
        return x * {factor}

    class Model(nn.Module):
        def __init__(self, width={width}):
            super().__init__()
            self.layer = nn.Linear(4, width)
            self.activation = {activation}

        def forward(self, x):
            return helper(self.activation(self.layer(x))) * SCALE
"""
DEFAULTS = {
    "imports": "",
    "scale": "2.0",
    "factor": "3",
    "width": "8",
    "activation": "lambda v: v.relu()",
}


def load(tmp_path, name="user_model", **changes):
    path = tmp_path / f"{name}.py"
    path.write_text(textwrap.dedent(MODEL.format(**{**DEFAULTS, **changes})))
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def key_of(tmp_path, **changes):
    return fast_key(load(tmp_path, **changes).Model())


@pytest.fixture(autouse=True)
def _forget_user_modules():
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("user_model"):
            del sys.modules[name]


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.flag = True

    def forward(self, x):
        return self.layer(x) if self.flag else x


def test_equal_modules_have_equal_keys():
    assert fast_key(Small()) == fast_key(Small()) is not None


def test_weights_do_not_matter_but_their_form_does():
    one, other = Small(), Small()
    with torch.no_grad():
        other.layer.weight.add_(1)
    assert fast_key(one) == fast_key(other)
    other.layer.weight.requires_grad_(False)
    assert fast_key(one) != fast_key(other)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: setattr(m, "flag", False),
        lambda m: m.eval(),
        lambda m: m.double(),
        lambda m: setattr(m, "extra", nn.Linear(1, 1)),
        lambda m: setattr(m.layer, "bias", None),
        lambda m: m.register_forward_hook(lambda *a: None),
        lambda m: setattr(m, "table", {"a": [1, 2]}),
        lambda m: setattr(m, "forward", lambda x: x),
        lambda m: m.register_buffer("count", torch.zeros(2)),
    ],
    ids=["flag", "eval", "dtype", "child", "bias", "hook", "dict", "forward", "buffer"],
)
def test_a_changed_module_has_another_key(change):
    module = Small()
    before = fast_key(module)
    change(module)
    assert fast_key(module) != before


def test_tied_weights_are_told_from_equal_ones():
    def make(tied):
        module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        if tied:
            module[1].weight = module[0].weight
        return module

    assert fast_key(make(True)) != fast_key(make(False))


@pytest.mark.parametrize(
    "change",
    [{"factor": "4"}, {"scale": "2.5"}, {"activation": "lambda v: v.tanh()"}, {"width": "9"}],
    ids=["helper", "global", "lambda", "default"],
)
def test_edited_user_code_has_another_key(tmp_path, change):
    base = key_of(tmp_path)
    assert base is not None
    assert key_of(tmp_path) == base
    assert key_of(tmp_path, **change) != base


def test_a_global_that_changed_without_an_edit_has_another_key(tmp_path):
    module = load(tmp_path)
    before = fast_key(module.Model())
    module.SCALE = 17.0
    assert fast_key(module.Model()) != before


def test_a_closed_over_value_counts():
    def make(factor):
        module = Small()
        module.function = lambda x: x * factor
        return module

    assert fast_key(make(2)) == fast_key(make(2))
    assert fast_key(make(2)) != fast_key(make(3))


def test_an_edited_imported_helper_file_has_another_key(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)

    def with_helper(body):
        (tmp_path / "user_model_helpers.py").write_text(f"def shift(x):\n    return x + {body}\n")
        sys.modules.pop("user_model_helpers", None)
        importlib.invalidate_caches()
        return fast_key(
            load(
                tmp_path,
                imports="from user_model_helpers import shift",
                activation="shift",
            ).Model()
        )

    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        assert with_helper("1") != with_helper("2")
    finally:
        sys.dont_write_bytecode = before


@pytest.mark.parametrize(
    "activation",
    [
        "lambda v: v * float(__import__('os').environ.get('A', 1))",
        "lambda v: v * len(open('a').read())",
    ],
    ids=["environment", "file"],
)
def test_code_that_reads_the_outside_has_no_key(tmp_path, activation):
    assert key_of(tmp_path, activation=activation) is None


def test_an_opaque_object_has_no_key():
    module = Small()
    module.stream = iter([1, 2])
    assert fast_key(module) is None


def test_the_key_is_the_same_in_another_process(tmp_path):
    path = tmp_path / "user_program.py"
    path.write_text(
        textwrap.dedent(MODEL.format(**DEFAULTS))
        + "\nfrom torchkiln.runtime.cache._fast_key import fast_key\n"
        + "print(fast_key(Model(), {1, 'a'}))\n"
    )
    keys = {
        subprocess.run(
            [sys.executable, str(path)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(keys) == 1
    assert "None" not in keys.pop()


def test_a_module_imported_inside_a_function_counts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def with_helper(body):
        (tmp_path / "user_model_local.py").write_text(f"def shift(x):\n    return x + {body}\n")
        sys.modules.pop("user_model_local", None)
        importlib.invalidate_caches()
        importlib.import_module("user_model_local")
        source = "def late(v):\n        from user_model_local import shift\n        return shift(v)"
        return fast_key(load(tmp_path, imports=source, activation="late").Model())

    one, same, other = with_helper("1"), with_helper("1"), with_helper("2")
    assert one == same is not None
    assert other != one


def test_a_local_import_of_something_not_loaded_has_no_key(tmp_path):
    source = "def late(v):\n        import user_model_never_loaded\n        return v"
    model = load(tmp_path, imports=source, activation="late").Model()
    assert fast_key(model) is None


def test_settings_deep_in_a_package_count(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "user_model_package"
    package.mkdir()
    (package / "__init__.py").write_text("from user_model_package import settings\n")
    (package / "settings.py").write_text("SLOPE = 1.0\n")
    module = load(
        tmp_path,
        imports="import user_model_package",
        activation="lambda v: v * user_model_package.settings.SLOPE",
    )
    before = fast_key(module.Model())
    assert before is not None
    sys.modules["user_model_package.settings"].SLOPE = 2.0
    assert fast_key(module.Model()) != before


def test_a_patched_library_class_counts(monkeypatch):
    before = fast_key(Small())
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: x * 2)
    assert fast_key(Small()) != before


def test_a_patched_function_of_torch_leaves_no_key(monkeypatch):
    monkeypatch.setattr(nn.functional, "relu", lambda x, inplace=False: x)
    assert fast_key(Small()) is None


def test_marks_on_a_parameter_count():
    module = Small()
    before = fast_key(module)
    module.layer.weight.skip = True
    assert fast_key(module) != before


@pytest.mark.parametrize("name", ["torchkiln.models", "torchkiln.ops", "poptorch"])
def test_own_code_counts_as_a_library(name):
    assert _fast_key._is_library_file(importlib.util.find_spec(name).origin)
