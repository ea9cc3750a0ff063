"""Try programs that nobody here wrote: packages from PyPI, each in an environment of its own.

    python clients/run.py [NAME ...] [--fresh] [--timeout 1800]

Each folder beside this file is a client: `requirements.txt` says what pip installs beside this
project, `unpinned.txt` (if there is one) what pip installs afterwards without its dependencies,
because they cannot live beside our torch, and `run.py` uses it. Its last line is a JSON record:
`client`, `imports`, `trains`, `checkpoints` and `matches` (true, false, or null for what a client
does not do), and `detail`, a sentence. Records are kept in `clients/results.json`, and the table in
`docs/clients.md` is made of them. Environments lie in `.clients/`; a second run installs nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
CLIENTS = ROOT / "clients"
ENVIRONMENTS = ROOT / ".clients"
RESULTS = CLIENTS / "results.json"
PAGE = ROOT / "docs" / "clients.md"
MARKERS = ("<!-- clients/run.py writes from here -->", "<!-- clients/run.py writes to here -->")
# Columns: how a record calls it, and how people do.
COLUMNS = {
    "installs": "installs",
    "imports": "imports",
    "trains": "trains",
    "checkpoints": "checkpoints",
    "matches": "matches CPU",
}
# Files that say what an environment holds.
_SAYS = ("requirements.txt", "unpinned.txt")
_LAST_LINES = 6
_LONGEST_LINE = 300

Record = dict[str, Any]


def find_clients() -> list[str]:
    """Return the names of all clients."""
    return sorted(path.parent.name for path in CLIENTS.glob("[!_.]*/run.py"))


def install(name: str, *, fresh: bool = False) -> str | None:
    """Make the environment of a client, and return pip's last lines if that fails."""
    environment = ENVIRONMENTS / name
    stamp = environment / ".installed"
    texts = [path.read_text() for file in _SAYS if (path := CLIENTS / name / file).exists()]
    texts.append((ROOT / "pyproject.toml").read_text())
    digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()
    if not fresh and stamp.exists() and stamp.read_text() == digest:
        return None
    shutil.rmtree(environment, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    for arguments in pip_calls(name):
        done = subprocess.run(
            [str(environment / "bin" / "python"), "-m", "pip", "install", *arguments],
            capture_output=True,
            text=True,
            # One compiler at a time: others work on this machine, too.
            env={**os.environ, "MAX_JOBS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            cwd=ROOT,
        )
        if done.returncode:
            return last_lines(done.stderr)
    stamp.write_text(digest)
    return None


def pip_calls(name: str) -> list[list[str]]:
    """Return what pip is asked for, one call after the other."""
    folder = CLIENTS / name
    # In one call: pip looks for versions that live beside this project's.
    calls = [["-e", str(ROOT), "-r", str(folder / "requirements.txt")]]
    if (unpinned := folder / "unpinned.txt").exists():
        # What builds against torch must see the one that is there.
        calls.append(["--no-deps", "--no-build-isolation", "-r", str(unpinned)])
    return calls


def last_lines(text: str) -> str:
    """Return what pip said at the end, without folders of this machine."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(("WARNING: Location", "[notice]"))]
    return "\n".join(without_paths(line)[:_LONGEST_LINE] for line in told[-_LAST_LINES:])


def without_paths(text: str) -> str:
    """Return a text with files named from the root of the project, or by their last part."""
    return re.sub(r"(?<![\w.:/])/(?:[^\s/'\"]+/)+([^\s/'\"]+)", r"\1", text.replace(f"{ROOT}/", ""))


def try_client(name: str, *, timeout_s: float) -> Record:
    """Run a client that is installed, and return its record."""
    script = CLIENTS / name / "run.py"
    with tempfile.TemporaryDirectory(prefix=f"torchkiln-client-{name}-") as folder:
        command = [str(ENVIRONMENTS / name / "bin" / "python"), str(script)]
        try:
            done = subprocess.run(
                command, cwd=folder, stdout=subprocess.PIPE, text=True, timeout=timeout_s
            )
        except subprocess.TimeoutExpired:
            return failed(name, f"run.py did not end within {timeout_s:g} s")
    return read_record(name, done.stdout, done.returncode)


def read_record(name: str, output: str, code: int) -> Record:
    """Return the record in the last line that a client printed."""
    lines = output.strip().splitlines()
    try:
        record = json.loads(lines[-1])
        picked = {key: record[key] for key in COLUMNS if key != "installs"}
        detail = str(record["detail"])
    except (IndexError, KeyError, TypeError, ValueError):
        return failed(name, f"run.py ended with exit code {code} and without a record")
    return {"client": name, "installs": True, **picked, "detail": without_paths(detail)}


def failed(name: str, detail: str) -> Record:
    """Return the record of a client that is installed and does nothing."""
    nothing = dict.fromkeys(COLUMNS, False)
    return {"client": name, **nothing, "installs": True, "detail": detail}


def not_installed(name: str, pip: str) -> Record:
    """Return the record of a client that pip did not install; what pip said is the proof."""
    if not pip:
        raise ValueError(f"{name}: a failed install counts only with what pip said")
    return {"client": name, **dict.fromkeys(COLUMNS, False), "detail": "", "pip": pip}


def word(value: Any) -> str:
    """Return what stands in the table."""
    return "–" if value is None else {True: "yes", False: "no"}.get(value, str(value))  # noqa: RUF001


def as_markdown(records: dict[str, Record]) -> str:
    """Return the table, a sentence for each client, and pip's last lines of those that failed."""
    lines = [
        f"| client | {' | '.join(COLUMNS.values())} |",
        f"|---{'|---' * len(COLUMNS)}|",
    ]
    rows = [records[name] for name in sorted(records)]
    for row in rows:
        lines.append(f"| `{row['client']}` | {' | '.join(word(row[key]) for key in COLUMNS)} |")
    lines.append("")
    lines += [f"- `{row['client']}`: {row['detail']}" for row in rows if row["detail"]]
    for row in rows:
        if "pip" in row:
            lines += ["", f"`{row['client']}` is not installed. pip's last lines:", ""]
            lines += ["```text", row["pip"], "```"]
    return "\n".join(lines)


def as_table(records: dict[str, Record]) -> Table:
    """Return the table for a terminal."""
    table = Table(title="Clients from PyPI")
    for title in ("client", *COLUMNS.values()):
        table.add_column(title, no_wrap=True)
    table.add_column("detail", overflow="fold")
    for name in sorted(records):
        row = records[name]
        cells = (word(row[key]) for key in COLUMNS)
        table.add_row(name, *cells, row["detail"] or row.get("pip", ""))
    return table


def put_between(page: str, text: str) -> str:
    """Return a page with `text` between the markers."""
    begin, end = (page.find(marker) for marker in MARKERS)
    if begin < 0 or end < begin:
        raise ValueError(f"docs/clients.md lacks its markers; put back {MARKERS[0]} and the other")
    return f"{page[: begin + len(MARKERS[0])]}\n{text}\n{page[end:]}"


def keep(records: dict[str, Record]) -> None:
    """Write the records and the page that is made of them."""
    RESULTS.write_text(json.dumps(records, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    PAGE.write_text(put_between(PAGE.read_text(), as_markdown(records)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="default: all clients")
    parser.add_argument("--fresh", action="store_true", help="make the environments anew")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for each run.py")
    arguments = parser.parse_args()
    known = find_clients()
    if unknown := set(arguments.names) - set(known):
        parser.error(f"no client {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    console = Console()
    records: dict[str, Record] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    records = {name: record for name, record in records.items() if name in known}
    tried = arguments.names or known
    for name in tried:
        console.rule(name)
        pip = install(name, fresh=arguments.fresh)
        if pip is None:
            records[name] = try_client(name, timeout_s=arguments.timeout)
        else:
            records[name] = not_installed(name, pip)
        # After each one: what is known survives what comes next.
        keep(records)
    console.print(as_table(records))
    return 0 if all(records[name]["trains"] for name in tried) else 1


if __name__ == "__main__":
    sys.exit(main())
