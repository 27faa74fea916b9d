"""What a user asks of a machine: calibration and a health check."""
