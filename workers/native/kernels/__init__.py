"""Native functions that are written by hand, for steps that are not fused.

    steps.py       which steps these are
    conv.py        convolutions: windows.py copies windows side by side, winograd.py saves products
    scatter.py     sums of rows by index
    code.py        what functions for arrays of any shape are written with; products.py: their matrix products
"""
