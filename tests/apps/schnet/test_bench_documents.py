"""Config files and docs/bench.md say what is true."""

import itertools
import re
from pathlib import Path

import pytest

from torchkiln.apps.schnet._arguments import read_settings
from torchkiln.apps.schnet._config_file import read_config, short_names
from torchkiln.apps.schnet._settings import Settings

REPOSITORY = Path(__file__).parents[3]
PAGE = REPOSITORY / "docs" / "bench.md"
# Those of `torchkiln bench cosmic` have settings of their own.
CONFIGS = sorted(
    path for path in (REPOSITORY / "configs").glob("*.yml") if not path.stem.startswith("cosmic")
)


def flat(values, prefix=""):
    """Return {dotted name: value}; groups are those of Settings."""
    groups = ("dataset_factory", "bench", "model")
    found = {}
    for name, value in values.items():
        if name in groups:
            found.update({f"{name}.{key}": entry for key, entry in value.items()})
        else:
            found[name] = value
    return found


DEFAULTS = flat(Settings().to_dict())


def test_the_annotated_config_explains_every_parameter_and_holds_its_default():
    path = REPOSITORY / "configs" / "bench_config.yml"
    # What is shipped lets the learning rate decay; the flag itself keeps the seed's meaning.
    decay = {"bench.learning_rate_decay": 0.75}
    assert flat(read_config(path)) == {**DEFAULTS, **decay}
    lines = path.read_text().splitlines()
    for before, line in itertools.pairwise(lines):
        if re.match(r" *\w+:", line):
            assert before.strip().startswith("#"), f"{line} has no explanation above it"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_configs_are_small_and_say_what_for(path):
    settings = read_settings(["--config", str(path)])
    if path.stem != "qm9_original":
        assert settings.bench.learning_rate_decay < 1
    assert f"python3 bench.py --config configs/{path.name}" in path.read_text()
    if path.stem not in ("bench_config", "qm9_packed", "qm9_original"):
        given = flat(read_config(path))
        changed = [key for key in given if flat(settings.to_dict())[key] != DEFAULTS[key]]
        # Defaults that a comparison depends on may be written down.
        assert len(changed) >= len(given) / 2


def test_packed_and_padded_configs_differ_in_packing_only():
    packed, padded = (
        flat(read_settings(["--config", f"{REPOSITORY}/configs/qm9_{name}.yml"]).to_dict())
        for name in ("packed", "padded")
    )
    different = {key for key in packed if packed[key] != padded[key]}
    assert different == {"dataset_factory.use_packing"}


def test_the_page_lists_every_flag_with_its_default():
    rows = re.findall(r"^\| `--([\w.]+)` \| ([^|]*) \|", PAGE.read_text(), flags=re.MULTILINE)
    spelled = {
        key: {None: "null", True: "true", False: "false"}.get(value, str(value))
        if value is None or isinstance(value, bool)
        else str(value)
        for key, value in DEFAULTS.items()
    }
    assert dict(rows) == spelled


def test_the_page_says_which_flags_have_no_short_form():
    nested = {key for key in DEFAULTS if "." in key} - set(short_names().values())
    assert nested == {"dataset_factory.seed", "bench.seed", "bench.num_workers"}


def test_links_and_configs_of_the_page_exist():
    text = PAGE.read_text()
    links = re.findall(r"\]\(([^):#]+)\)", text)
    assert links
    assert [link for link in links if not (PAGE.parent / link).exists()] == []
    named = set(re.findall(r"configs/(\w+\.yml)", text))
    assert named == {path.name for path in CONFIGS}
