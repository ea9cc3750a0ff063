"""One training loop for every application, and for your own models."""
