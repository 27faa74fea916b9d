"""Drivers: programs that tests run in separate processes, because a process has one connection to Ray."""
