"""NumPy's and SciPy's less common functions: most are made of the ops of the folder above, which does not know them."""
