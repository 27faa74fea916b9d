"""Submits, lists, follows and stops jobs of a Ray cluster."""
