"""More scenes than every test run could play: `python -m tests.faults.scenes_all` plays and judges them."""
