"""Calls public functions with wrong arguments: each call must end with a result or a clear error."""
