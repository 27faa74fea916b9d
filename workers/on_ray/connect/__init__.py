"""The connection to Ray: how it opens, who may use it, and how waits end."""
