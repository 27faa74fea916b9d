"""The cost model: work of steps, rates of machines, and memory."""
