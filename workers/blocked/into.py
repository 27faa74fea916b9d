"""Kernels that write into given buffers: what the NumPy engine runs on blocks that lie in the cache.

`INTO[op_type]` says how; an op type that is not there is computed by its kernel alone. `PAIRS` has ops that are
computed together. Importing this module fills the tables.
"""

from __future__ import annotations

from distgrad.workers.blocked import into_elementwise, into_layout, into_rows
from distgrad.workers.blocked.into_table import INTO, PAIRS, Into, Pair, into_of

__all__ = ["INTO", "PAIRS", "Into", "Pair", "into_elementwise", "into_layout", "into_of", "into_rows"]
