"""SchNet on QM9 under Ray Train: each worker of Ray is one rank of the benchmark.

    pip install 'torchkiln[ray,qm9]'
    python3 examples/ray_train.py --num_workers 2 --config configs/qm9_quick.yml

All flags but `--num_workers` and `--cpus_per_worker` are those of bench.py. Ray starts the workers
and makes the process group; Torchkiln takes it over. docs/distributed.md tells the rest.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path


def train(settings):
    """Run the benchmark as one rank; Ray calls this in each worker."""
    import ray.train

    from torchkiln.apps.schnet import main

    os.chdir(settings["folder"])  # paths in flags are those of the person who typed them
    code = main(settings["flags"], prog="examples/ray_train.py")
    if code:
        raise RuntimeError(f"the benchmark ended with exit code {code}; its message is above")
    # Rank 0 alone writes a report. Ray wants to hear the same number of times from every worker.
    path = Path(settings["output_dir"], settings["run_name"], "results.json")
    figures = json.loads(path.read_text()) if path.exists() else {}
    ray.train.report({name: figures.get(name) for name in ("status", "world", "test")})


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num_workers", type=int, default=2, help="ranks (default: 2)")
    parser.add_argument("--cpus_per_worker", type=int, default=1, help="threads of each rank")
    parser.add_argument("--output_dir", default="runs", help="folder of the report")
    parser.add_argument("--run_name", default="ray", help="name of the report")
    return parser.parse_known_args()


def run():
    arguments, flags = read_arguments()
    try:
        import ray
        from ray.train import RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer
    except ModuleNotFoundError:
        sys.exit("examples/ray_train.py: Ray is not installed; pip install 'torchkiln[ray]'")

    flags += ["--output_dir", arguments.output_dir, "--run_name", arguments.run_name]
    settings = {**vars(arguments), "flags": flags, "folder": os.getcwd()}
    # A Ray on this machine alone; on a cluster, ray.init() finds it.
    ray.init()
    try:
        with tempfile.TemporaryDirectory(prefix="torchkiln-ray-") as storage:
            trainer = TorchTrainer(
                train,
                train_loop_config=settings,
                torch_config=TorchConfig(backend="gloo"),
                scaling_config=ScalingConfig(
                    num_workers=arguments.num_workers,
                    resources_per_worker={"CPU": arguments.cpus_per_worker},
                ),
                run_config=RunConfig(storage_path=storage),
            )
            trainer.fit()
    finally:
        ray.shutdown()


if __name__ == "__main__":
    run()
