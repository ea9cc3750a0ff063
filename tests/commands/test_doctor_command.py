import os
from types import SimpleNamespace

from torchkiln.commands import (
    _doctor,
    _doctor_caches,
    _doctor_machine,
    _doctor_processes,
    _doctor_versions,
)
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


def test_threads_that_get_in_each_others_way_are_found(monkeypatch):
    monkeypatch.setattr(_doctor_machine, "cpu_quota", lambda: 0.5)
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


def test_one_process_hears_how_several_would_divide_the_cores(monkeypatch):
    monkeypatch.setattr(_doctor_processes, "usable_cores", lambda: {0, 1, 2, 3})
    processes = found(_doctor_processes.processes)
    assert processes["backends"].text.startswith("gloo for CPUs")
    assert processes["this process"].text == "alone: no launcher started others with it"
    assert "--nproc-per-node 2 starts 2, each with 2 of the 4 cores" in (
        processes["several processes"].text
    )


def place(pid, threads, cores, *, chosen=False, host="kiln"):
    return _doctor_processes.Place(host, pid, threads, cores, "eth0", chosen)


def test_who_computes_where_is_told_by_rank():
    places = [place(7, 1, (0,)), place(8, 3, (1, 2, 3))]
    first, second = _doctor_processes.findings_of(places)
    assert first == Finding("rank 0", "process 7 on kiln: 1 thread on core 0, talks over eth0")
    assert "3 threads on cores 1 to 3" in second.text


def test_ranks_that_compete_for_cores_are_found():
    places = [place(7, 2, (0, 1), chosen=True), place(8, 2, (0, 1)), place(9, 2, (0, 1), host="b")]
    *ranks, competition = _doctor_processes.findings_of(places)
    assert "as OMP_NUM_THREADS says" in ranks[0].text
    assert competition.text == "the processes on kiln have 4 threads for 2 cores"
    assert "unset OMP_NUM_THREADS" in competition.remedy
