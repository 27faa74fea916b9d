"""Opening, sharing and losing the connection to Ray: tokens, TLS, what listens, waits that end."""
