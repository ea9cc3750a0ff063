"""`make clients`: what a record must say, and that docs/clients.md says the same."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHARED = ROOT / "clients" / "_shared"


@pytest.fixture
def frame(monkeypatch, tmp_path):
    """The script, with a folder of clients of its own."""
    spec = importlib.util.spec_from_file_location("clients_run", ROOT / "clients" / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    clients = tmp_path / "clients"
    clients.mkdir()
    monkeypatch.setattr(module, "CLIENTS", clients)
    monkeypatch.setattr(module, "ENVIRONMENTS", tmp_path / "environments")
    monkeypatch.setattr(module, "RESULTS", clients / "results.json")
    page = tmp_path / "clients.md"
    page.write_text("Before\n" + "\n".join(module.MARKERS) + "\nAfter\n")
    monkeypatch.setattr(module, "PAGE", page)
    return module


def add_client(frame, name, script, requirements=""):
    folder = frame.CLIENTS / name
    folder.mkdir()
    (folder / "requirements.txt").write_text(requirements)
    (folder / "run.py").write_text(script)
    # An environment that is there already: no test installs torch.
    python = frame.ENVIRONMENTS / name / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)


def line(**values):
    record = {"client": "x", "imports": True, "trains": True, "checkpoints": None, "matches": False}
    return json.dumps({**record, "detail": "Something.", **values})


def test_the_last_line_of_a_client_is_its_record(frame):
    add_client(frame, "good", f"print('chatter'); print({line()!r})")
    record = frame.try_client("good", timeout_s=60)
    assert record == {
        "client": "good",
        "installs": True,
        "imports": True,
        "trains": True,
        "checkpoints": None,
        "matches": False,
        "detail": "Something.",
    }


@pytest.mark.parametrize(
    "script", ["raise SystemExit(3)", "print('no record')", "print('{\"imports\": true}')"]
)
def test_a_client_without_a_record_does_nothing(frame, script):
    add_client(frame, "mute", script)
    record = frame.try_client("mute", timeout_s=60)
    assert not any(record[key] for key in ("imports", "trains", "checkpoints", "matches"))
    assert "without a record" in record["detail"]


def test_a_client_that_never_ends_is_stopped(frame):
    add_client(frame, "slow", "import time; time.sleep(600)")
    assert "did not end within 0.5 s" in frame.try_client("slow", timeout_s=0.5)["detail"]


def test_a_failed_install_counts_only_with_what_pip_said(frame):
    with pytest.raises(ValueError, match="only with what pip said"):
        frame.not_installed("sad", "")
    text = frame.as_markdown({"sad": frame.not_installed("sad", "ERROR: No matching wheel")})
    assert "| `sad` | no | no | no | no | no |" in text
    assert "```text\nERROR: No matching wheel\n```" in text


def test_what_pip_said_is_kept_when_it_fails(frame, monkeypatch):
    folder = frame.CLIENTS / "sad"
    folder.mkdir()
    (folder / "requirements.txt").write_text("")

    def run(command, **options):
        if "venv" in command:
            Path(command[-1]).mkdir(parents=True)
            return subprocess.CompletedProcess(command, 0)
        return subprocess.CompletedProcess(command, 1, "", "a\n\nERROR: for /usr/lib/x/setup.py\n")

    monkeypatch.setattr(frame.subprocess, "run", run)
    assert frame.install("sad") == "a\nERROR: for setup.py"
    assert not (frame.ENVIRONMENTS / "sad" / ".installed").exists()


def test_a_second_install_installs_nothing(frame, monkeypatch):
    folder = frame.CLIENTS / "once"
    folder.mkdir()
    (folder / "requirements.txt").write_text("lightning\n")
    commands = []

    def run(command, **options):
        commands.append(command)
        Path(frame.ENVIRONMENTS / "once").mkdir(parents=True, exist_ok=True)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(frame.subprocess, "run", run)
    assert frame.install("once") is None
    first = len(commands)
    assert frame.install("once") is None
    assert len(commands) == first == 2
    (folder / "requirements.txt").write_text("lightning==2.6.6\n")
    assert frame.install("once") is None
    assert len(commands) == 2 * first


def test_what_cannot_live_beside_torch_is_installed_last_and_alone(frame):
    folder = frame.CLIENTS / "pinned"
    folder.mkdir()
    (folder / "unpinned.txt").write_text("graphium==2.4.7\n")
    first, second = frame.pip_calls("pinned")
    assert first[-1].endswith("requirements.txt")
    assert "--no-deps" in second
    assert second[-1].endswith("unpinned.txt")


def test_the_table_stands_between_the_markers(frame):
    add_client(frame, "good", f"print({line()!r})")
    frame.keep({"good": frame.try_client("good", timeout_s=60)})
    frame.keep({"good": frame.try_client("good", timeout_s=60)})
    page = frame.PAGE.read_text()
    assert page.startswith("Before\n")
    assert page.endswith("After\n")
    assert page.count("| `good` | yes | yes | yes | – | no |") == 1  # noqa: RUF001
    with pytest.raises(ValueError, match="lacks its markers"):
        frame.put_between("nothing", "x")


def test_the_page_says_what_the_kept_records_say():
    spec = importlib.util.spec_from_file_location("clients_run", ROOT / "clients" / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    records = json.loads(module.RESULTS.read_text())
    page = module.PAGE.read_text()
    assert page == module.put_between("".join(split_at(page, module)), module.as_markdown(records))
    assert set(records) <= set(module.find_clients())


def split_at(page, module):
    """Return the page without what stands between the markers."""
    begin, end = (page.find(marker) for marker in module.MARKERS)
    return page[: begin + len(module.MARKERS[0])], "\n", page[end:]


@pytest.mark.parametrize("broken", [False, True])
def test_a_client_reports_whatever_happens(broken):
    script = (
        f"import sys; sys.path.append({str(SHARED)!r})\n"
        "from client_report import ClientReport\n"
        "with ClientReport('x') as report:\n"
        "    report.imports = True\n"
        f"    if {broken}: raise RuntimeError('two\\nlines')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    record = json.loads(done.stdout.splitlines()[-1])
    assert record["imports"] is True
    assert record["trains"] is False
    assert record["detail"] == ("Ended with RuntimeError: two lines" if broken else "")
