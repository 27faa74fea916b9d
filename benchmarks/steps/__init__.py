"""The workloads of `benchmarks/step.py`, once per framework, and the code that times and judges them.

`inputs` has the sizes and the arrays; each `in_<framework>` has the same losses, written as a user of that framework
would; `server` runs one of them in its own process and `client` sends requests to it; `bars` has the targets and
`report` prints them. Tests use the models of `in_distgrad` and `inputs`.
"""
