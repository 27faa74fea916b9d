"""What the Ray engine claims, on a real Ray. `programs` has the drivers that need a process of their own."""
