"""Where time and memory go: of one step (graph profile), and of a whole run (system profile)."""
