"""Kernels that write into given buffers: what the NumPy engine runs on blocks that lie in the cache.

`INTO[op_type]` says how; an op type that is not there is computed by its kernel alone. `scratch` gives a thread memory
that it uses again and again. Importing this module fills the table.
"""

from __future__ import annotations

from distgrad.workers.kernels import into_elementwise, into_layout, into_rows
from distgrad.workers.kernels.into_table import INTO, Into, scratch

__all__ = ["INTO", "Into", "into_elementwise", "into_layout", "into_rows", "scratch"]
