"""Passes over programs: each takes a program and returns one that computes the same with less, or in better pieces.

`pipeline.PASSES` lists them in their order, with what each does, needs and keeps of the bits. Each is a few loops over
the steps and checks nothing: `pipeline.improve` runs them and checks what they made. Those that cutting asks for, one
by one, check their own result.
"""
