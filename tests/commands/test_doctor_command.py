import os
from types import SimpleNamespace

import pytest

from torchkiln.commands import _doctor, _doctor_caches, _doctor_machine, _doctor_versions
from torchkiln.commands._findings import Finding
from torchkiln.core._other_processes import OtherLoad, Reading


def found(probe):
    return {finding.what: finding for finding in probe()}


def test_every_part_is_printed_and_nothing_fails(capfd, monkeypatch, tmp_path):
    for name in ("XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "NUMBA_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    _doctor.print_diagnosis()
    out = capfd.readouterr().out
    for word in ("torch_geometric", "processor", "pinning", "C++ compiler", "executable cache"):
        assert word in out
    assert "cannot tell more" not in out


def test_a_probe_that_fails_is_a_finding(capfd, monkeypatch):
    def broken():
        yield Finding("first", "fine")
        raise OSError("the disk [red]is gone")

    monkeypatch.setattr(_doctor, "_probes", lambda: {"Disk": broken})
    _doctor.print_diagnosis()
    out = capfd.readouterr().out
    assert "fine" in out
    assert "OSError: the disk [red]is gone" in out
    assert "1 remedies above" in out


def test_wrong_and_missing_versions_get_the_command_that_mends_them(monkeypatch):
    real = _doctor_versions._version_of
    fakes = {"torch": "2.12.1", "tqdm": None, "wandb": None}
    monkeypatch.setattr(
        _doctor_versions, "_version_of", lambda name: fakes[name] if name in fakes else real(name)
    )
    required = found(_doctor_versions.required_packages)
    assert required["torch"].text == "2.12.1, but <2.14,>=2.13 is needed"
    assert required["torch"].remedy == "pip install 'torch<2.14,>=2.13'"
    assert required["tqdm"].text == "not installed"
    assert not required["numpy"].remedy
    optional = found(_doctor_versions.optional_packages)
    assert "pip install wandb" in optional["wandb"].text
    assert not optional["wandb"].remedy


def test_threads_that_get_in_each_others_way_are_found(monkeypatch, tmp_path):
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    monkeypatch.setattr(_doctor_machine, "_CPU_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    busy = OtherLoad(cores=1, used=0.9, busiest="python train.py (process 7)", busiest_used=0.8)
    monkeypatch.setattr(Reading, "load_since", lambda self, earlier: busy)
    monkeypatch.setattr(_doctor_machine, "_LOOK_SECONDS", 0.0)
    for name in ("OMP_PROC_BIND", "GOMP_CPU_AFFINITY"):
        monkeypatch.delenv(name, raising=False)
    threads = found(_doctor_machine.threads)
    assert "OMP_NUM_THREADS=1" in threads["torch"].remedy
    assert "0.5 cores" in threads["quota"].text
    assert "OMP_PROC_BIND=true" in threads["pinning"].remedy
    assert "noise" in threads["load"].remedy
    assert "use 0.9 of 1 cores, most of it python train.py (process 7)" in threads["load"].text
    monkeypatch.setenv("OMP_PROC_BIND", "true")
    assert not found(_doctor_machine.threads)["pinning"].remedy


@pytest.mark.parametrize(("text", "cores"), [("max 100000", None), ("150000 100000", 1.5)])
def test_quotas_of_containers_are_read(tmp_path, text, cores):
    (tmp_path / "cpu.max").write_text(text)
    assert _doctor_machine._quota(tmp_path / "cpu.max") == cores
    assert _doctor_machine._quota(tmp_path / "none") is None


def test_little_memory_is_found(monkeypatch):
    import psutil

    monkeypatch.setattr(
        psutil, "virtual_memory", lambda: SimpleNamespace(available=2**29, total=2**31)
    )
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=2**20))
    machine = found(_doctor_machine.machine)
    assert "0.5 of 2.0 GB" in machine["memory"].text
    assert "smaller batches" in machine["memory"].remedy
    assert "--num_workers 0" in machine["shared memory"].remedy


def test_a_missing_or_broken_compiler_is_found(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "install g++" in found(_doctor_machine.compiler)["C++ compiler"].remedy
    fake = tmp_path / "c++"
    fake.write_text("#!/bin/sh\necho 'omp.h: error: no such file' >&2\n[ $1 = --version ]\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    trial = found(_doctor_machine.compiler)["trial"]
    assert "omp.h: error: no such file" in trial.text
    assert "install g++" in trial.remedy


def test_caches_have_sizes_and_a_way_to_clear_them(monkeypatch, tmp_path):
    sizes = {
        "data/qm9.npz": 3 * 2**20,
        "data/native/helper.so": 2**20,
        f"executables/executables/{64 * 'a'}.pt2": 2**21,
        "a b/deep/code.cpp": 2**19,
        "numba/x.nbi": 2**20,
        "numba/x.py": 2**22,
    }
    for name, size in sizes.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(bytes(size))
    for name, folder in {
        "TORCHKILN_DATA_DIR": "data",
        "TORCHKILN_NATIVE_DIR": "data/native",
        "POPTORCH_CACHE_DIR": "executables",
        "TORCHINDUCTOR_CACHE_DIR": "a b",
        "NUMBA_CACHE_DIR": "numba",
    }.items():
        monkeypatch.setenv(name, str(tmp_path / folder))
    caches = found(_doctor_caches.caches)
    assert caches["executable cache"].text.startswith("1 executables, 2.0 of 4,096 MB")
    assert "torchkiln cache clear" in caches["executable cache"].text
    assert "benchmark's executables" not in caches
    assert caches["native helpers"].text.startswith("1.0 MB")
    assert caches["datasets"].text.startswith("3.0 MB")
    assert "torchkiln data clear" in caches["datasets"].text
    assert caches["Inductor's workspace"].text.startswith("0.5 MB")
    assert f"rm -r '{tmp_path / 'a b'}'" in caches["Inductor's workspace"].text
    assert caches["Numba's loops"].text.startswith("1.0 MB")


def test_counting_a_huge_folder_ends(monkeypatch, tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"12345")
    assert _doctor_caches.folder_size(tmp_path) == (15, True)
    monkeypatch.setattr(_doctor_caches, "_SECONDS_PER_FOLDER", -1.0)
    size, complete = _doctor_caches.folder_size(tmp_path)
    assert size < 15
    assert not complete


def test_options_without_effect_are_listed_and_those_in_use_named(monkeypatch):
    everything = found(_doctor.options_without_effect)
    assert "Precision.enableStochasticRounding" in everything["poptorch.Options"].text
    assert "deviceIterations" not in everything["poptorch.Options"].text
    assert "in use" not in everything
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", '{"logDir": "elsewhere"}')
    assert "log_dir = 'elsewhere'" in found(_doctor.options_without_effect)["in use"].text
