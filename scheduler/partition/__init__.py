"""Cuts programs into the tasks of a plan."""
