"""Fused steps as NumPy calls on blocks that fit the cache."""
