"""Drivers: whole programs that tests run in a process of their own, because a process has one connection to Ray."""
