"""Partitions programs into the tasks of a plan."""
