"""The graph profile: where the time and the memory of one step of a program go."""
