"""Extras of torch, with array-api-compat's namespace. New arrays are on its default device, which a GPU worker sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from distgrad.workers.backends.base_extras import Array, Extras

#: Dtypes that NumPy and torch do not share are converted as integers with the same bits.
_SHARED = {"bfloat16": "int16"}


class _Readable:
    """An array's memory without the read-only flag, about which torch would warn. No kernel writes to its inputs."""

    def __init__(self, x: Array) -> None:
        self.x = x  # keeps the memory
        interface = dict(x.__array_interface__)
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def on_cpu() -> bool:
    """Whether new tensors are in the memory of the CPU."""
    import torch

    return bool(torch.get_default_device().type == "cpu")


class TorchExtras(Extras):
    lacking: Mapping[str, str] = {**Extras.lacking, "exp2": "", "max": "c", "min": "c", "sort": "c", "argsort": "c"}

    def __init__(self, xp: Any) -> None:
        super().__init__(xp)
        #: By dtype of NumPy: the dtype of torch, and the integer dtype for the conversion if there is none in common.
        self._travels: dict[np.dtype[Any], tuple[Any, str | None]] = {}
        self._short = (xp.float16, xp.bfloat16)
        self.kinds |= dict.fromkeys(self._short, "f") | dict.fromkeys((xp.uint16, xp.uint32, xp.uint64), "u")

    def from_numpy(self, x: Array) -> Any:
        return self.mover()(x)

    def mover(self) -> Callable[[Array], Any]:
        """Asks for the device once, by creating a tensor: `torch.get_default_device` takes fifty times as long."""
        import torch

        device = torch.empty(0).device
        return self._tensor if device.type == "cpu" else lambda x: self._tensor(x).to(device)

    def _tensor(self, x: Array) -> Any:
        """A tensor on the CPU that shares the array's memory."""
        import torch

        if x.dtype not in self._travels:  # cached: NumPy builds dtype names on every access
            self._travels[x.dtype] = self.dtype(x.dtype), _SHARED.get(x.dtype.name)
        dtype, bits = self._travels[x.dtype]
        if min(x.strides, default=0) < 0:  # torch has no negative strides
            x = x.copy()
        if bits is not None:
            x = x.view(bits)
        if not x.flags.writeable:
            x = np.asarray(_Readable(x))
        made = torch.from_numpy(x)
        return made if made.dtype == dtype else made.view(dtype)

    def hand_out(self, xs: Sequence[Any]) -> list[Array]:
        """Without a copy for tensors that own all of their memory. Memory that torch allocated belongs to no input and
        no constant, which NumPy allocated; torch can resize its own memory alone."""
        memory = [x.untyped_storage() for x in xs]
        places = [m.data_ptr() for m in memory]
        count = {place: places.count(place) for place in set(places)} if len(set(places)) < len(places) else None
        return [
            self.to_numpy(x)
            if m.resizable() and m.nbytes() == x.nbytes and (count is None or count[place] == 1)
            else np.array(self.to_numpy(x))
            for x, m, place in zip(xs, memory, places, strict=True)
        ]

    def extremes(self, x: Any) -> tuple[int, int]:
        low, high = x.aminmax()
        return int(low), int(high)

    def to_numpy(self, x: Any) -> Array:
        import torch

        if not x.is_cpu or x.requires_grad:
            x = x.detach().cpu()
        if x.is_conj() or x.is_neg():
            x = x.resolve_conj().resolve_neg()
        if x.dtype != torch.bfloat16:
            return x.numpy()  # type: ignore[no-any-return]
        import ml_dtypes

        return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)  # type: ignore[no-any-return]

    def itemsize(self, dtype: Any) -> int:
        return dtype.itemsize  # type: ignore[no-any-return]

    def is_short(self, dtype: Any) -> bool:
        return dtype in self._short

    def astype(self, x: Any, dtype: Any) -> Any:
        return x.to(dtype)

    def get(self, x: Any, key: Sequence[Any]) -> Any:
        forward, axes = _forward(key, x.shape)
        return (x.flip(axes) if axes else x)[forward]

    def put(self, out: Any, key: Sequence[Any], values: Any) -> Any:
        forward, axes = _forward(key, out.shape)
        if not axes:
            out[forward] = values
            return out
        out = out.flip(axes)
        out[forward] = values
        return out.flip(axes)

    def increase(self, out: Any, key: Sequence[Any], by: Any) -> Any:
        out[_forward(key, out.shape)[0]] += by
        return out

    def add_at(self, flat: Any, places: Any, values: Any) -> Any:
        return flat.index_put_((places,), values, accumulate=True)  # in order on a CPU, sorted first on a GPU

    def special(self, name: str, x: Any, *before: int) -> Any:
        import torch

        return getattr(torch.special, name)(*before, x)


def _forward(key: Sequence[Any], shape: Sequence[int]) -> tuple[tuple[Any, ...], list[int]]:
    """A key without negative steps, and the axes that must be flipped for it: torch has no negative strides."""
    import torch

    forward: list[Any] = []
    flipped: list[int] = []
    axis, dims = 0, max([e.ndim for e in key if hasattr(e, "dtype")], default=0)
    for e in key:
        if isinstance(e, slice) and (e.step or 1) < 0:
            span, last = range(*e.indices(shape[axis])), shape[axis] - 1
            start = last - span.start
            e = slice(start, start - len(span) * span.step, -span.step)
            flipped.append(axis)
        elif isinstance(e, int) and dims:  # next to index arrays an int counts as one; torch would drop its axis first
            e = torch.full((1,), e)
        forward.append(e.long() if hasattr(e, "dtype") else e)  # torch takes uint8 for a mask
        axis += e is not None
    return tuple(forward), flipped
