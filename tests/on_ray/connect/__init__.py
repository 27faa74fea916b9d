"""Opening, sharing and losing the connection to Ray: tokens, TLS, listening addresses, bounded waits."""
