"""The connection to Ray: opening and closing it, its security, and bounded waits."""
