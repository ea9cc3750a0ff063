import shutil
import subprocess

import pytest

from torchkiln import cli
from torchkiln.commands._completion import completion_script

TRY = """
COMP_WORDS=({words}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_torchkiln
echo "${{COMPREPLY[*]}}"
"""


def completed(*words: str) -> list[str]:
    """Return what bash offers for the last word."""
    script = completion_script("bash", cli._COMMANDS)
    typed = " ".join(f"'{word}'" for word in ("torchkiln", *words))
    done = subprocess.run(
        ["bash", "-c", script + TRY.format(words=typed)], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["be"], ["bench"]),
        (["data", "q"], ["qm9"]),
        (["data", "qm9", "--ro"], ["--root"]),
        (["bench", "--preset", "q"], ["quick"]),
        (["bench", "--loss", ""], ["mse", "mae"]),
        (["bench", "--quiet", "--devi"], ["--device", "--device_iterations"]),
        (["bench", "co"], ["cosmic"]),
        (["bench", "cosmic", "--run.compute_mode", ""], ["CPU", "CUDA", "IPU"]),
        (["completion", "f"], ["fish"]),
        (["plan", "--algorithm", "l"], ["lpfhp"]),
    ],
)
def test_bash_completes_commands_flags_and_values(words, offered):
    assert completed(*words) == offered


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "molecules.xyz").touch()
    assert completed("predict", "mol") == ["molecules.xyz"]
    assert completed("bench", "--config", "mol") == ["molecules.xyz"]


def test_zsh_gets_the_functions_of_bash():
    script = completion_script("zsh", cli._COMMANDS)
    assert "bashcompinit" in script
    assert script.endswith(completion_script("bash", cli._COMMANDS))


def test_fish_gets_a_line_for_every_flag():
    lines = completion_script("fish", cli._COMMANDS).splitlines()
    bench = "complete -c torchkiln -n \"__torchkiln_path 'bench'\""
    assert f"{bench} -l loss -x -a 'mse mae'" in lines
    assert f"{bench} -l root -r -F" in lines
    assert f"{bench} -l num_epochs -x" in lines
    assert f"{bench} -l help" in lines
    at_top = "complete -c torchkiln -n \"__torchkiln_path ''\" -f -a "
    assert any(line.startswith(f"{at_top}'bench cache ") for line in lines)


def test_every_command_is_in_the_script(capsys):
    assert cli.main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    for name in cli._COMMANDS:
        assert f"' {name}') path=" in script
