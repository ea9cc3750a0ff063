"""Every command and every Python block of the README, from a fresh clone, in their order."""

import os
import re
import subprocess

import pytest
from _documents import README, ROOT

# What is shortened, and how. Everything else runs as it stands.
SHORTENED = {
    # `make bench` trains on all of QM9 for five epochs; its code is the same for fewer molecules.
    "BENCH_ARGS": "--limit 2000 --num_epochs 1",
}
# Each block is one step; a shell goes on with what the one before has exported.
TIMEOUT_S = 1700


def steps():
    """Return (language, text) of all blocks that are to be run."""
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", README.read_text(), flags=re.DOTALL | re.M)
    assert {language for language, _ in blocks} == {"bash", "python"}
    return blocks


@pytest.mark.slow
@pytest.mark.inductor
@pytest.mark.timeout(TIMEOUT_S)
def test_the_readme_runs_from_a_fresh_clone_in_its_order(tmp_path):
    clone = tmp_path / "torchkiln"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    script = ["set -e"]
    for number, (language, text) in enumerate(steps()):
        if language == "python":
            (tmp_path / f"block{number}.py").write_text(text)
            text = f"python {tmp_path}/block{number}.py\n"
        script.append(f"echo 'step {number}'\n{text}")
    script.append("ls runs/*/report.html molecules.xyz")
    home = tmp_path / "home"
    home.mkdir()
    # pip's own settings stay, everything that leads to this checkout goes.
    kept = {name: text for name, text in os.environ.items() if name.startswith("PIP_")}
    if "HOME" in os.environ:
        config = os.path.join(os.environ["HOME"], ".config", "pip", "pip.conf")
        if os.path.exists(config):
            kept["PIP_CONFIG_FILE"] = config
    environment = {
        **kept,
        **SHORTENED,
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LANG": "C.UTF-8",
    }
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=clone,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert done.stdout.count("step ") >= len(steps())
    assert "loss 0.0" in done.stdout
    assert "benzene" in done.stdout
    # Nothing that git would take was left in the clone.
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=clone, capture_output=True, text=True, check=True
    )
    assert status.stdout.split() in (["??", "molecules.xyz"], [])


def test_the_variables_that_shorten_are_read_by_the_makefile():
    makefile = (ROOT / "Makefile").read_text()
    for name in SHORTENED:
        assert f"$({name})" in makefile
