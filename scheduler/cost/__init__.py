"""What steps cost: work, rates of machines, and memory."""
