"""Tests of the Ray engine on a real Ray. `programs` has the drivers that need a separate process."""
