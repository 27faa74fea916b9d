"""Differentiates graphs."""
