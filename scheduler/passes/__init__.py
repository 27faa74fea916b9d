"""Passes over programs: each takes a program and returns an equivalent one that is faster or easier to partition.

`pipeline.PASSES` lists them in order, with what each does, requires and preserves. A pass is a few loops over the steps
and does not check its result: `pipeline.improve` runs the passes and checks the final program. The passes that
partitioning calls directly check their own result.
"""
