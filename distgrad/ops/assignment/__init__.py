"""Assignment: names for values, views, masks, concrete arrays, and NumPy's statements on them."""
