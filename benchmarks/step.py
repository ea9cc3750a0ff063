"""Per-step time of eager PyTorch, torch.compile with a fused optimiser, and Torchkiln.

    python benchmarks/step.py

Prints ratios measured side by side and writes benchmarks/results/step.json.
"""

from pathlib import Path

from torchkiln.cli import bench

if __name__ == "__main__":
    bench(
        workloads=["cnn", "gcn", "mlp", "transformer"],
        repeats=7,
        seconds=1.0,
        compare_compile=True,
        json=Path(__file__).parent / "results" / "step.json",
    )
