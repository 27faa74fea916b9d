"""The workloads of `benchmarks/step.py`, once per framework, and what times and judges them.

`inputs` has the sizes and the arrays; each `in_<framework>` has the same losses, written as a user of that framework
would; `server` runs one of them in a process of its own and `client` asks it; `bars` says what must hold and `report`
prints it. Only `in_distgrad` and `inputs` are of use elsewhere: tests take models from there.
"""
