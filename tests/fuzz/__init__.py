"""Calls of public functions with arguments that no one should give: each is answered, or refused with a clear error."""
