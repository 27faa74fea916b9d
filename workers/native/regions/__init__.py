"""Regions: what a thread does without meeting others, as tables that native code walks without Python.

blas.py      NumPy's own matrix products, by address
code.py      the native functions: products, copies, and the loop over the rows of a table
table.py     rows, and the memory that they are in
region.py    a stretch of steps as such a table, run by threads
"""
