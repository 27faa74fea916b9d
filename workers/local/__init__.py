"""The local engine: runs plans in this process."""
