"""Runs the steps of a task on torch arrays."""
