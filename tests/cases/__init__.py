"""The op table: one or more rows per op type. test_op_table.py runs every row; a missing row is a failing test."""

from __future__ import annotations

from importlib import import_module

from .case import Case

FAMILIES = (
    "control", "math", "array", "reduce", "index", "matmul", "linalg", "nn", "conv", "random", "files", "samples",
    "fft",
)  # fmt: skip


def all_cases() -> dict[str, list[Case]]:
    table: dict[str, list[Case]] = {}
    for family in FAMILIES:
        for op_type, rows in import_module(f".{family}", __package__).CASES.items():
            assert op_type not in table, f"{op_type} has rows in two files"
            table[op_type] = rows
    return table
