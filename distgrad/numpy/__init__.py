"""NumPy's namespace for whole files: `import distgrad.numpy as np` in place of `import numpy as np`.

Outside a trace everything here is NumPy. In a function that is traced, arrays that are made here (`np.zeros`,
`np.array([t, u])`, ...) can be assigned tensors, and keep concrete values as long as they depend on no argument: such
an array works as shape, index, condition and loop bound.

>>> import distgrad as dg, distgrad.numpy as np
>>> def squares(x):
...     y = np.empty(3)
...     for i in range(3):
...         y[i] = x[i] ** 2
...     return np.sum(y)
>>> dg.grad(squares)(np.array([1.0, 2.0, 3.0]))
array([2., 4., 6.])
"""

from __future__ import annotations

from typing import Any

import numpy as _numpy

from distgrad.numpy import fft, linalg, random
from distgrad.numpy.arrays import OWN
from distgrad.numpy.calls import lifted

__version__ = _numpy.__version__
__all__ = [name for name in _numpy.__all__ if name != "__version__"]

_own = {"linalg": linalg, "fft": fft, "random": random, **OWN}
_names = globals()
for _name in __all__:
    _names[_name] = _own[_name] if _name in _own else lifted(getattr(_numpy, _name))
del _name, _names, _own


def __getattr__(name: str) -> Any:
    """What NumPy has besides its public names, such as submodules that it imports late."""
    return getattr(_numpy, name)
