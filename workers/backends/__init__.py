"""Array backends: the array libraries that kernels run on. Each is a folder, and a row in `table.py`.

A kernel is given an array namespace `xp`. What the Python Array API standard lacks, it takes from `extras(xp)`. NumPy
itself is a backend; other libraries are imported when their backend is first used.
"""

from distgrad.workers.backends.backend import Backend, CompiledSteps, Gpus
from distgrad.workers.backends.base_extras import Array, Extras
from distgrad.workers.backends.table import BACKENDS, backend, extras, gpu_backend, package_versions

__all__ = [
    "Array", "BACKENDS", "Backend", "CompiledSteps", "Extras", "Gpus", "backend", "extras", "gpu_backend",
    "package_versions",
]  # fmt: skip
