"""Sessions: plans graphs and runs them."""
