"""Sessions of tests, which tests/test_isolation.py runs as processes. pytest does not collect them by itself."""
