"""Checkpoints: state on disk."""
