"""`poprun`: its flags, what it hands to torchrun and to the instances, and how it ends."""

import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from launching import command

from torchkiln.commands import _poprun
from torchkiln.commands._poprun import poprun
from torchkiln.commands._poprun_flags import _WITHOUT_EFFECT, read_flags, to_request

CODE = "import sys; from torchkiln.commands._poprun import poprun; sys.exit(poprun())"
START = (sys.executable, "-c", CODE)
TWO = ("--num-instances=2", "--num-replicas=4")


@pytest.fixture
def handed_over(monkeypatch):
    """What torchrun is asked to do, with the environment at that moment; it is not started."""
    calls = []

    def launch(arguments):
        calls.append((arguments, dict(os.environ)))
        return 0

    monkeypatch.setattr(_poprun, "_launch", launch)
    return calls


def test_instances_and_replicas_reach_torchrun_and_the_environment(handed_over, capsys):
    assert poprun([*TWO, "python3", "train.py", "--num-replicas", "9"]) == 0
    ((arguments, environment),) = handed_over
    assert arguments[:4] == ["--standalone", "--nproc-per-node", "2", "--no-python"]
    assert arguments[4:] == [sys.executable, "train.py", "--num-replicas", "9"]
    assert environment["POPDIST_NUM_TOTAL_REPLICAS"] == "4"
    assert environment["POPDIST_NUM_LOCAL_REPLICAS"] == "2"
    assert environment["POPDIST_NUM_IPUS_PER_REPLICA"] == "1"
    told = capsys.readouterr().err
    assert "replicas in each: 2, in all: 4; POPDIST_NUM_LOCAL_REPLICAS=2 torchrun" in told


def test_each_instance_has_a_replica_unless_more_are_asked_for(handed_over):
    assert poprun(["--num-instances", "3", sys.executable, "-V"]) == 0
    ((_, environment),) = handed_over
    assert environment["POPDIST_NUM_TOTAL_REPLICAS"] == "3"


def test_threads_that_the_user_chose_stay(handed_over, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    poprun([*TWO, "python", "train.py"])
    assert handed_over[0][1]["OMP_NUM_THREADS"] == "5"


THREADS = """
import popdist, torch
popdist.init()
print("threads", torch.get_num_threads(), flush=True)
"""


def test_instances_divide_the_cores():
    whole_lines = {"PYTHONUNBUFFERED": ""}
    with command((*START, *TWO, "python3", "-c", THREADS), whole_lines) as running:
        done = running.wait(timeout_s=40).ok()
    cores = len(os.sched_getaffinity(0))
    found = [int(line.split()[1]) for line in done.stdout.splitlines()]
    assert sorted(found) == [max(cores // 2, 1), (cores + 1) // 2]
    assert "OMP_NUM_THREADS" not in done.stderr


def test_the_cache_of_programs_is_poptorchs(handed_over, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert poprun(["--executable-cache-path", "cache", "python3", "train.py"]) == 0
    assert handed_over[0][1]["POPTORCH_CACHE_DIR"] == str(tmp_path / "cache")


@pytest.mark.parametrize("flag", sorted(_WITHOUT_EFFECT))
def test_flags_of_the_original_without_effect_are_told(flag, handed_over, capsys):
    assert poprun([f"{flag}=1", "python3", "train.py"]) == 0
    assert f"poprun: {flag} has no effect: " in capsys.readouterr().err
    assert handed_over[0][0][-1] == "train.py"


@pytest.mark.parametrize(
    ("words", "flags", "rest"),
    [
        (["--numa-aware", "yes", "python3"], {"--numa-aware": "yes"}, ["python3"]),
        (["--numa-aware", "python3"], {"--numa-aware": ""}, ["python3"]),
        (["-u", "-v", "./run"], {"--update-partition": "", "--verbose": ""}, ["./run"]),
        (["--vipu-partition", "p4", "run"], {"--vipu-partition": "p4"}, ["run"]),
        (["--mpi-local-args=-x A=1", "run"], {"--mpi-local-args": "-x A=1"}, ["run"]),
        (["--num_replicas=2", "--", "-run"], {"--num-replicas": "2"}, ["-run"]),
        (["run", "--num-replicas=2"], {}, ["run", "--num-replicas=2"]),
    ],
)
def test_where_the_program_begins(words, flags, rest):
    assert read_flags(words) == (flags, rest)


@pytest.mark.parametrize(
    ("args", "fragment"),
    [
        (["--num-instances=2"], "there is no program to run"),
        (["--num-instances=2", "--num-replicas=3", "python3"], "3 is no multiple .* take 2 or 4"),
        (["--num-instances=4", "--num-replicas=2", "python3"], "2 is no multiple .* take 4"),
        (["--num-instances=two", "python3"], "--num-instances must be a number from 1 on"),
        (["--num-replicas=0", "python3"], "--num-replicas must be a number from 1 on, got '0'"),
        (["--num-replica=2", "python3"], "unknown flag --num-replica; did you mean --num-rep"),
        (["--bogus", "python3"], "flags of the program stand behind its name"),
        (["--num-replicas"], "--num-replicas needs a value"),
        (["--num-replicas=1", "--num-replicas=2", "python3"], "--num-replicas is given twice"),
        (["no-such-program"], "there is no program 'no-such-program'"),
        ([__file__], r"for a Python program: poprun \.\.\. python3 "),
    ],
)
def test_wrong_command_lines(args, fragment, handed_over, capsys):
    assert poprun(args) == 2
    told = capsys.readouterr().err
    assert re.search(fragment, told)
    assert told.endswith("More: poprun --help\n")
    assert not handed_over


@pytest.mark.parametrize("where", [["--host=a,b"], ["--host", "a,b", "--instances-per-host=2"]])
def test_several_hosts_get_the_line_for_each(where, handed_over, capsys):
    args = ["--num-instances=4", "--num-replicas=8", *where, "python3", "train.py", "a b"]
    assert poprun(args) == 2
    told = capsys.readouterr().err
    assert "for a and b, run this line on each" in told
    line = (
        "POPDIST_NUM_TOTAL_REPLICAS=8 POPDIST_NUM_LOCAL_REPLICAS=2 POPDIST_NUM_IPUS_PER_REPLICA=1 "
        "torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint a:29500 "
        "--rdzv-id run1 --no-python python3 train.py 'a b'"
    )
    assert line in told
    assert not handed_over


def test_instances_that_do_not_fit_the_hosts(capsys):
    args = ["--num-instances=4", "--host=a,b", "--instances-per-host=3", "python3"]
    assert poprun(args) == 2
    assert "4 instances on 2 hosts with 3 each do not add up" in capsys.readouterr().err


@pytest.mark.parametrize("where", [["--host=localhost"], ["--instances-per-host=2"]])
def test_this_machine_is_no_other_host(where):
    flags, words = read_flags(["--num-instances=2", *where, "python3"])
    assert to_request(flags, words).layout.num_instances == 2


def test_help_teaches_and_loads_no_torch():
    code = f"{CODE.removesuffix('sys.exit(poprun())')}poprun(['--help'])"
    code += "; assert 'torch' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    for said in ("poprun --num-instances=2", "popdist.init()", "exit codes:"):
        assert said in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    flags, _ = read_flags(["--version"])
    assert flags == {"--version": ""}


def test_nothing_at_all_is_the_help_on_standard_error(capsys):
    assert poprun([]) == 2
    shown = capsys.readouterr()
    assert "usage: poprun" in shown.err
    assert shown.out == ""


def test_the_command_is_installed():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["project"]["scripts"]["poprun"] == "torchkiln.commands._poprun:poprun"


INSTANCE = """
import os, sys, time
if os.environ["RANK"] == "1":
    print("arguments", sys.argv[1:], os.environ["WORLD_SIZE"], flush=True)
    if sys.argv[1] == "kill":
        os.kill(os.getpid(), 9)
    sys.exit(7)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [("fail", 7, "ended with exit code 7"), ("kill", 128 + 9, "was ended by SIGKILL")],
)
def test_the_exit_code_is_that_of_the_instance_that_failed(how, code, said, tmp_path):
    script = tmp_path / "instance.py"
    script.write_text(INSTANCE)
    words = (*START, *TWO, "python3", str(script), how, "--num-replicas=9")
    with command(words) as running:
        done = running.wait(timeout_s=40)
    assert done.returncode == code
    assert f"arguments ['{how}', '--num-replicas=9'] 2" in done.stdout
    assert re.search(rf"poprun: instance 1 \(process \d+\) {said}; the others were", done.stderr)
    assert "Traceback" not in done.stderr


def test_signals_reach_the_instances():
    code = (
        "import os, signal, sys, time\n"
        "def take(number, frame):\n"
        "    print(f'took {number}', flush=True)\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, take)\n"
        "print(f'ready {os.environ[\"RANK\"]}', flush=True)\n"
        "time.sleep(60)\n"
    )
    with command((*START, *TWO, "python3", "-c", code)) as running:
        running.wait_for("ready 0")
        running.wait_for("ready 1")
        running.process.send_signal(signal.SIGTERM)
        done = running.wait(timeout_s=40)
    assert done.returncode == 128 + signal.SIGTERM
    assert done.stdout.count("took 15") == 2, done.output
    assert "SIGTERM came, and was passed on to all instances" in done.stderr
    assert "Traceback" not in done.stderr
