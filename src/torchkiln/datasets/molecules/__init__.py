"""Molecules as flat arrays, and what training needs of them: graphs, targets, splits."""
