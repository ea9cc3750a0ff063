"""examples/ray_train.py trains SchNet in two workers of a real Ray on this machine."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLAGS = ["--limit", "300", "--num_epochs", "1", "--batch_size", "2", "--num_features", "8"]


def run(*arguments: str, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
    """Run the example in a session of its own, which is ended in any case: Ray has daemons."""
    command = [sys.executable, str(ROOT / "examples" / "ray_train.py"), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "RAY_DEDUP_LOGS": "0"}
    process = subprocess.Popen(
        command,
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
    finally:
        subprocess.run(
            [sys.executable, "-m", "ray.scripts.scripts", "stop", "--force"],
            capture_output=True,
            check=False,
            timeout=60,
        )
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@pytest.mark.slow
@pytest.mark.timeout(800)
def test_the_example_trains_in_two_workers(tmp_path):
    pytest.importorskip("ray.train", reason="needs Ray: pip install 'torchkiln[ray]'")
    # Not imported: qm9pack asks for pkg_resources, which setuptools no longer has.
    if importlib.util.find_spec("qm9pack") is None:
        pytest.skip("needs QM9: pip install 'torchkiln[qm9]'")
    done = run("--num_workers", "2", "--output_dir", str(tmp_path), "--backend", "eager", *FLAGS)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "ray" / "results.json").read_text())
    assert result["status"] == "finished"
    assert result["world"]["size"] == 2
    assert len(result["epochs"]) == 1
