"""Time per training step of small models, with plain PyTorch and with Torchkiln."""
