"""Plans as text and as HTML."""
