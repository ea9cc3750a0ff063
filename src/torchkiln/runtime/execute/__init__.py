"""Running an executable: iterations, accumulation, replicas, outputs."""
