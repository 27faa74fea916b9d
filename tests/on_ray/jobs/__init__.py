"""Jobs of a Ray cluster, submitted to clusters that the tests start."""
