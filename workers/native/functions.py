"""Mathematical functions as formulas of `Value`s: no branches, no tables, no calls of a library.

Each formula is one fixed sequence of IEEE operations per element, so its bits are the same on every CPU. It reduces its
argument, evaluates a polynomial by fma, and selects special values at the end. Some float32 functions compute in
float64 and round once, with polynomials of a middle precision.

Coefficients are listed from the highest power down. They are weighted least squares fits, close to the best possible;
the comment beside them gives the interval and the largest error, relative to the function's result, that the polynomial
itself has. `benchmarks/accuracy.py` measures the bounds that the table at the end states.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from distgrad.types import DType
from distgrad.workers.native.values import Value, fma, polynomial, select

FLOAT32, FLOAT64 = np.dtype("float32"), np.dtype("float64")
INF, NAN = math.inf, math.nan
LOG2E = 1 / math.log(2)

#: Coefficients by precision: "single", "double", and "middle" for float64 values that become float32 at the end.
Coefficients = dict[str, tuple[float, ...]]


class Format(NamedTuple):
    """What the formulas need to know about a floating dtype."""

    precision: str
    fraction: int  # bits of the fraction
    bias: int  # of the exponent
    magic: float  # adding it rounds to an integer, which is then in the lowest bits
    exp_range: tuple[float, float]  # beyond these exp is 0 or infinite
    exp2_range: tuple[float, float]
    tiny: float  # of smaller arguments x - x**2 rounds to x
    normal: float  # the smallest normal number
    saturated: float  # from here on tanh rounds to 1
    ln2: tuple[float, float]  # a short number, whose products with exponents are exact, and the rest
    log10_2: tuple[float, float]  # the same
    log2_e: tuple[float, float]  # rounded, and the rest
    log10_e: tuple[float, float]  # rounded, and the rest


_FORMATS = {
    FLOAT32: Format(
        precision="single",
        fraction=23,
        bias=127,
        magic=1.5 * 2**23,
        exp_range=(-104.0, 89.0),
        exp2_range=(-151.0, 129.0),
        tiny=2.0**-26,
        normal=2.0**-126,
        saturated=9.1,
        ln2=(0.693145751953125, 1.4286068203094173e-06),
        log10_2=(0.301025390625, 4.605038981195214e-06),
        log2_e=(1.4426950216293335, 1.9259629911266175e-08),
        log10_e=(0.4342944920063019, -1.0103050052231683e-08),
    ),
    FLOAT64: Format(
        precision="double",
        fraction=52,
        bias=1023,
        magic=1.5 * 2**52,
        exp_range=(-746.0, 710.0),
        exp2_range=(-1076.0, 1025.0),
        tiny=2.0**-55,
        normal=2.0**-1022,
        saturated=19.1,
        ln2=(0.6931471805598903, 5.497923018708371e-14),
        log10_2=(0.30102999566383914, 1.42050232272661e-13),
        log2_e=(1.4426950408889634, 2.0355273740931033e-17),
        log10_e=(0.4342944819032518, 1.098319650216765e-17),
    ),
}


def _form(x: Value) -> Format:
    return _FORMATS[x.dtype]


def _poly(x: Value, coefficients: Coefficients, precision: str = "") -> Value:
    return polynomial(x, *coefficients[precision or _form(x).precision])


def _through_float64(formula: Callable[..., Value]) -> Callable[..., Value]:
    """The function of a formula that takes float64 values and a precision: float32 values are cast there and back."""

    def build(*args: Value) -> Value:
        if args[0].dtype == FLOAT64:
            return formula(*args, "double")
        return formula(*[x.cast(FLOAT64) for x in args], "middle").cast(FLOAT32)

    return build


# -- parts: exponents ----------------------------------------------------------------------------------------------


def _clamped(x: Value, low: float, high: float) -> Value:
    """NaN stays NaN."""
    x = select(x > high, high, x)
    return select(x < low, low, x)


def _rounded(magic_sum: Value) -> tuple[Value, Value]:
    """The integer that a number was rounded to when the magic number was added, as a float and as an integer."""
    magic = magic_sum.like(_form(magic_sum).magic)
    return magic_sum - magic, magic_sum.bits() - magic.bits()


def _floating(n: Value) -> Value:
    """An integer of at most 51 bits as a float of its size; AVX2 has no instruction for int64."""
    if n.dtype.itemsize == 4:
        return n.cast(FLOAT32)
    magic = n.like(_FORMATS[FLOAT64].magic, FLOAT64)
    return (n + magic.bits()).bits("f") - magic


def _power_of_two(n: Value) -> Value:
    """2**n of an integer, as a float of the same size, where that is a normal number."""
    form = _FORMATS[np.dtype(f"f{n.dtype.itemsize}")]
    return ((n + form.bias) << form.fraction).bits("f")


def _scaled(x: Value, n: Value) -> Value:
    """x * 2**n with one rounding, also where the result is subnormal or infinite."""
    half = n >> 1
    return x * _power_of_two(half) * _power_of_two(n - half)


# -- parts: exp ----------------------------------------------------------------------------------------------------

# (expm1(r) - r) / r**2 for |r| <= 0.347
_EXP: Coefficients = {
    "single": (0.00139355916, 0.00836654752, 0.0416664593, 0.166665435, 0.5),  # 2**-26.1 of expm1
    # 2**-37.4
    "middle": (
        2.488110175350826e-05, 0.0001990486433648484, 0.0013888812338310984, 0.008333289152889462,
        0.04166666693769905, 0.1666666675366293, 0.49999999999751393,
    ),
    # 2**-61.6
    "double": (
        2.0922455908735905e-09, 2.5109194150989717e-08, 2.755724998276538e-07, 2.755724375618286e-06,
        2.4801587350775098e-05, 0.00019841269886585792, 0.0013888888888872858, 0.00833333333332144,
        0.041666666666666685, 0.16666666666666677, 0.5,
    ),
}  # fmt: skip


def _reduced_exp(x: Value, precision: str = "") -> tuple[Value, Value]:
    """n and p with exp(x) = 2**n (1 + p), where n is an integer; x is within the range of exp."""
    form = _form(x)
    k, n = _rounded(fma(x, LOG2E, form.magic))
    r = fma(k, -form.ln2[1], fma(k, -form.ln2[0], x))
    return n, fma(r * r, _poly(r, _EXP, precision), r)


def _precise_exp(x: Value) -> tuple[Value, Value, Value]:
    """n, high and low with exp(x) = 2**n (high + low), where low has what high has lost."""
    form = _form(x)
    k, n = _rounded(fma(x, LOG2E, form.magic))
    most = fma(k, -form.ln2[0], x)
    r = fma(k, -form.ln2[1], most)
    lost = fma(k, -form.ln2[1], most - r)
    high = r + 1
    return n, high, ((1 - high) + r) + fma(r * r, _poly(r, _EXP), lost)


# -- parts: log ----------------------------------------------------------------------------------------------------

# (log1p(f) - f + f**2 / 2) / f**3 for sqrt(1/2) <= 1 + f <= sqrt(2)
_LOG: Coefficients = {
    # 2**-27.3 of log1p
    "single": (
        -0.0763510689, 0.127580807, -0.131581932, 0.142019808, -0.166235656, 0.200012341, -0.250008166,
        0.333333313,
    ),
    # 2**-40.8
    "middle": (
        0.043978596248578396, -0.08529587599072488, 0.08698587656498262, -0.08291160410607805, 0.08962488097285876,
        -0.0999163962591197, 0.11118730593053197, -0.1250073701899507, 0.1428548931488354, -0.16666645726629287,
        0.20000003035714217, -0.2500000018649106, 0.3333333332007851,
    ),
    # 2**-56.5
    "double": (
        0.026147241217642354, -0.05982349263157385, 0.06504745364695111, -0.056780031237594585, 0.0566799387500368,
        -0.06196545885073623, 0.06684635041701827, -0.07149461626273837, 0.07691527387498233, -0.08332911777492205,
        0.09090923968741267, -0.10000015279369012, 0.11111111148893149, -0.124999996899609, 0.14285714280036893,
        -0.16666666669836708, 0.2000000000006715, -0.24999999999987987, 0.3333333333333314,
    ),
}  # fmt: skip


def _log_tail(f: Value, precision: str = "") -> Value:
    """log1p(f) - f."""
    return fma(_poly(f, _LOG, precision), f, -0.5) * (f * f)


def _exponent(x: Value) -> Value:
    """The integer e with sqrt(1/2) <= x / 2**e < sqrt(2), of a positive normal number."""
    return (x.bits() - x.like(math.sqrt(0.5)).bits()) >> _form(x).fraction


def _split(x: Value) -> tuple[Value, Value]:
    """e, as a float, and f with x = 2**e (1 + f), of a positive finite number."""
    form = _form(x)
    small = x < form.normal
    x = select(small, x * 2.0**form.fraction, x)
    e = _exponent(x)
    f = (x.bits() - (e << form.fraction)).bits("f") - 1
    return _floating(e) - select(small, x.like(form.fraction), 0), f


def _joined(e: Value, step: tuple[float, float], high: Value, low: Value) -> Value:
    """e * step + high + low, where the large terms are added without loss."""
    large = e * step[0]
    total = large + high
    return total + ((high - (total - large)) + fma(e, step[1], low))


def _log_in_base(x: Value, step: tuple[float, float], unit: tuple[float, float]) -> Value:
    """The logarithm in a base in which that of 2 is `step` and that of e is `unit`."""
    e, f = _split(x)
    high = f * unit[0]
    low = fma(_log_tail(f), unit[0], fma(f, unit[1], fma(f, unit[0], -high)))
    return _log_of_special(x, _joined(e, step, high, low))


def _log_of_special(x: Value, y: Value) -> Value:
    """y, but where x is zero, negative, infinite or NaN its logarithm."""
    y = select(x > 0, y, select(x == 0, x.like(-INF), NAN))
    return select(x == INF, x, y)


# -- exponentials and logarithms -----------------------------------------------------------------------------------


def exp(x: Value) -> Value:
    n, p = _reduced_exp(_clamped(x, *_form(x).exp_range))
    return _scaled(p + 1, n)


def exp2(x: Value) -> Value:
    form = _form(x)
    x = _clamped(x, *form.exp2_range)
    k, n = _rounded(x + form.magic)
    r = (x - k) * math.log(2)
    return _scaled(fma(r * r, _poly(r, _EXP), r) + 1, n)


def expm1(x: Value) -> Value:
    form = _form(x)
    n, p = _reduced_exp(_clamped(x, -2 * form.saturated, form.exp_range[1]))
    half = _power_of_two(n - 1)  # 2**n may be too large
    return select(abs(x) < form.tiny, x, fma(half, p, half - 0.5) * 2)


def log(x: Value, precision: str = "") -> Value:
    e, f = _split(x)
    return _log_of_special(x, _joined(e, _form(x).ln2, f, _log_tail(f, precision)))


def log2(x: Value) -> Value:
    return _log_in_base(x, (1.0, 0.0), _form(x).log2_e)


def log10(x: Value) -> Value:
    return _log_in_base(x, _form(x).log10_2, _form(x).log10_e)


def log1p(x: Value, precision: str = "") -> Value:
    form = _form(x)
    e = _exponent(x + 1)
    scale = _power_of_two(2 - e)  # 4 / 2**e: a normal number also for the largest x
    f = fma(x * 0.25, scale, fma(scale, 0.25, -1))
    y = _joined(_floating(e), form.ln2, f, _log_tail(f, precision))
    y = select(x > -1, y, select(x == -1, x.like(-INF), NAN))
    return select((abs(x) < form.tiny) | (x == INF), x, y)


def sigmoid(x: Value) -> Value:
    """1 / (1 + exp(-x)), by exp(-abs(x)), which does not overflow."""
    n, high, low = _precise_exp(_clamped(-abs(x), *_form(x).exp_range))
    total = high + low
    z = _scaled(total, n)
    d = z + 1
    y = select(x < 0, z, 1) / d
    off = select(x < 0, (high - total) + low, 0) - ((1 - d) + z)  # what z, above, and d have lost
    return fma(y, off, y)


def softplus(x: Value) -> Value:
    """max(x, 0) + log1p(exp(-abs(x)))."""
    z = exp(-abs(x))
    upper = z > math.sqrt(2) - 1
    f = select(upper, fma(z, 0.5, -0.5), z)
    high, low = _form(x).ln2
    rest = select(upper, x.like(high), 0) + (f + (_log_tail(f) + select(upper, x.like(low), 0)))
    return select(x > 0, x, 0) + rest


def _power(x: Value, y: Value, precision: str) -> Value:
    size = abs(x)
    n, p = _reduced_exp(_clamped(log(size, precision) * y, -200, 200), precision)
    scale = _power_of_two(n)
    z = fma(scale, p, scale)
    whole, half = y.floor() == y, y * 0.5
    z = select(whole & (half.floor() != half) & (x.bits() < 0), -z, z)
    z = select((x < 0) & (x > -INF) & ~whole, NAN, z)
    return select((y == 0) | (x == 1) | ((size == 1) & (abs(y) == INF)), 1, z)


power = _through_float64(_power)


# -- hyperbolic functions ------------------------------------------------------------------------------------------

# (tanh(x) - x) / x**3 in x**2 for x <= 0.75
_TANH: Coefficients = {
    # 2**-29.1
    "single": (
        0.00174260256, -0.00766714104, 0.0214585438, -0.0538947135, 0.133327216, -0.333333164,
    ),
    # 2**-59.2
    "double": (
        -1.4865501682118713e-06, 9.495612327119998e-06, -3.362220267130705e-05, 9.344779648099879e-05,
        -0.0002376230280079838, 0.0005895606790272209, -0.0014557315590689422, 0.003592112185250265,
        -0.008863233871319478, 0.02186948842427341, -0.05396825396379317, 0.13333333333324368, -0.3333333333333327,
    ),
}  # fmt: skip

# (sinh(x) - x) / x**3 in x**2 for x <= 1
_SINH: Coefficients = {
    "single": (2.78991797e-06, 0.000198416717, 0.00833331514, 0.166666672),  # 2**-31.4
    # 2**-61.7
    "double": (
        7.772492826793516e-13, 1.6056793677111756e-10, 2.5052129320701788e-08, 2.75573191166015e-06,
        0.00019841269841566728, 0.008333333333332938, 0.16666666666666669,
    ),
}  # fmt: skip


def tanh(x: Value) -> Value:
    form = _form(x)
    size, square = abs(x), x * x
    near = fma(_poly(square, _TANH) * square, x, x)
    n, p = _reduced_exp(select(size > form.saturated, 2 * form.saturated, size * 2))
    scale = _power_of_two(n)
    far = 1 - 2 / fma(scale, p, scale + 1)  # 1 - 2 / (exp(2 abs(x)) + 1)
    return select(size < 0.75, near, far).copysign(x)


def _half_exp(size: Value) -> Value:
    """exp(size) / 2, infinite only where that is."""
    n, high, low = _precise_exp(_clamped(size, 0, _form(size).exp_range[1] + 1))
    return _scaled(high + low, n - 1)


def sinh(x: Value) -> Value:
    size, square = abs(x), x * x
    half = _half_exp(size)
    near = fma(_poly(square, _SINH) * square, x, x)
    return select(size < 1, near, half - 0.25 / half).copysign(x)


def cosh(x: Value) -> Value:
    half = _half_exp(abs(x))
    return half + 0.25 / half


def _arcsinh(x: Value, precision: str) -> Value:
    size = abs(x)
    large = size > 2.0**60
    inner = size + size * size / ((fma(size, size, 1)).sqrt() + 1)
    y = log1p(select(large, size, inner), precision) + select(large, x.like(math.log(2)), 0)
    return y.copysign(x)


def _arccosh(x: Value, precision: str) -> Value:
    large = x > 2.0**60
    t = x - 1
    y = log1p(select(large, x, t + fma(t, t, t * 2).sqrt()), precision)
    return select(x < 1, NAN, y + select(large, x.like(math.log(2)), 0))


def _arctanh(x: Value, precision: str) -> Value:
    size = abs(x)
    return (log1p(size * 2 / (1 - size), precision) * 0.5).copysign(x)


arcsinh, arccosh, arctanh = _through_float64(_arcsinh), _through_float64(_arccosh), _through_float64(_arctanh)


# -- the error function --------------------------------------------------------------------------------------------

# erf(x) / x - 1 in x**2 for x <= 1
_ERF: Coefficients = {
    # 2**-29.3
    "single": (
        7.84631557e-05, -0.00080079172, 0.00518807583, -0.0268536918, 0.112835832, -0.37612626, 0.128379166,
    ),
    # 2**-55.9
    "double": (
        -7.768145170750732e-10, 1.3704432872785075e-08, -1.620466683090321e-07, 1.644689530573814e-06,
        -1.4924691006008311e-05, 0.00012055292324469968, -0.0008548325880992512, 0.005223977604920027,
        -0.0268661706429297, 0.11283791670942651, -0.3761263890318346, 0.12837916709551256,
    ),
}  # fmt: skip

# log(erfc(x)) for 1 <= x <= 3.92 or 5.93
_LOG_ERFC: Coefficients = {
    # 2**-29.7 of erf
    "single": (
        0.000186610894, -0.00295035588, 0.0218506418, -0.103136905, -0.638105512, -1.12711573, -0.000334265351,
    ),
    # 2**-59.2 of erf
    "double": (
        1.065125839022211e-12, -4.861694712231488e-11, 1.038653545236357e-09, -1.3784861384492295e-08,
        1.270443126144111e-07, -8.589275357759665e-07, 4.366803835934908e-06, -1.6661632586153668e-05,
        4.547133633382278e-05, -7.138274453067236e-05, -4.292202507124738e-05, 0.0006383401663231904,
        -0.0017656609927852148, 0.00027741571314077537, 0.019080313953004652, -0.10274836903354129,
        -0.6366280880629477, -1.1283774183437525, -1.7039368904450655e-07,
    ),
}  # fmt: skip

# erfc(x) exp(x**2) / r in r - c, with r = 1 / (1 + k x), for 0 <= x <= 10.06 or 27.3
_ERFC: Coefficients = {
    # k = 1/2: 2**-27.5
    "single": (
        0.0351350121, -0.00908167008, -0.0766168311, 0.0493222214, 0.100267164, -0.0999631137, -0.175159469,
        0.141527712, 0.561574161, 0.693999887, 0.515006304,
    ),
    # k = 1/4: 2**-57.9
    "double": (
        0.0010827221039382247, 0.00016465857479270509, -0.004052466484612266, -0.00025078368463847864,
        0.008132919232706065, 0.0024073159290940367, -0.013903146708229633, -0.01146450254150196,
        0.01939762767556992, 0.03836472753664633, -0.004211133378571273, -0.09048179682087547,
        -0.11552126058340442, 0.03709562447282192, 0.3908504977917591, 0.8407869265857899, 1.2163462319518152,
        1.3849436102553074, 1.3166265041362917, 1.0765513598101688, 0.7700471964911032, 0.4867672811605275,
        0.27352282119906546,
    ),
}  # fmt: skip
_ERFC_SCALE = {"single": (0.5, 0.506103515625, 10.1), "double": (0.25, 0.4990234375, 27.3)}  # k, c, the end


def erf(x: Value) -> Value:
    size, square = abs(x), x * x
    near = fma(_poly(square, _ERF), x, x)
    end = 3.92 if x.dtype == FLOAT32 else 5.93  # from here on 1 - erf(x) is lost
    n, p = _reduced_exp(_poly(select(size > end, end, size), _LOG_ERFC))
    scale = _power_of_two(n)
    far = (1 - scale) - scale * p
    return select(size < 1, near, far).copysign(x)


def erfc(x: Value) -> Value:
    """exp(-x**2) times a smooth function of 1 / (1 + k x). What is lost on the way is added at the end."""
    k, centre, end = _ERFC_SCALE[_form(x).precision]
    size = _clamped(abs(x), 0, end)
    d = fma(size, k, 1)
    r = 1 / d
    off = fma(-r, fma(size, k, 1 - d), fma(-r, d, 1))  # r should be r (1 + off)
    square = size * size
    rest = fma(size, size, -square)
    n, high, low = _precise_exp(-square)
    s = fma(r, off, r - centre)
    *upper, last = _ERFC[_form(x).precision]
    t = polynomial(s, *upper) * s
    p = t + last
    lost = select(abs(t) > last, (t - p) + last, (last - p) + t)
    product = p * r
    small = fma(p, r, -product) + lost * r
    correction = fma(product, low, (high + low) * fma(product, off - rest, small))
    y = _scaled(fma(product, high, correction), n)
    y = select(x < 0, 2 - y, y)
    if x.dtype == FLOAT32:
        return y
    return select(abs(x) < 0.46, 1 - fma(_poly(x * x, _ERF), x, x), y)  # where the polynomial in r loses two bits


# -- circular functions --------------------------------------------------------------------------------------------

PI = (3.141592653589793, 1.2246467991473532e-16)
HALF_PI = (1.5707963267948966, 6.123233995736766e-17)
QUARTER_PI = (0.7853981633974483, 3.061616997868383e-17)

# (sin(r) - r) / r**3 in r**2 for r <= 0.786
_SIN: Coefficients = {
    # 2**-37.5
    "middle": (
        2.7181442492461535e-06, -0.00019839316265669367, 0.008333329324725464, -0.1666666664107421,
    ),
    # 2**-63.1
    "double": (
        -7.444114749601512e-13, 1.6055388843415355e-10, -2.5052078967618553e-08, 2.755731910197518e-06,
        -0.00019841269841006708, 0.008333333333333066, -0.16666666666666666,
    ),
}  # fmt: skip

# (cos(r) - 1 + r**2 / 2) / r**4 in r**2 for r <= 0.786
_COS: Coefficients = {
    # 2**-43.1
    "middle": (
        -2.7210142150585313e-07, 2.479951985229156e-05, -0.0013888883757572623, 0.041666666622928464,
    ),
    # 2**-64.1
    "double": (
        -1.1359923138197172e-11, 2.0875729254618006e-09, -2.755731440202186e-07, 2.4801587289677497e-05,
        -0.0013888888888874483, 0.0416666666666666,
    ),
}  # fmt: skip

# (arcsin(s) - s) / s**3 in s**2 for s <= 0.5
_ARCSIN: Coefficients = {
    # 2**-35.8
    "middle": (
        0.03460258671026452, 0.007548364651306363, 0.024591083420087725, 0.03011490151679109, 0.044659759174002195,
        0.07499949798440697, 0.1666666716701597,
    ),
    # 2**-59.8
    "double": (
        0.032586258643411505, -0.020929739193588582, 0.02165719129159479, 0.0037276638931248, 0.010774440705089046,
        0.011399988110573092, 0.013980683348883421, 0.01735162404053796, 0.02237221427745609, 0.03038194273485894,
        0.04464285717399495, 0.07499999999971525, 0.16666666666666757,
    ),
}  # fmt: skip

# (arctan(t) - t) / t**3 in t**2 for t <= 0.5
_ARCTAN: Coefficients = {
    # 2**-36.2
    "middle": (
        -0.029943880893740765, 0.06457095264364499, -0.08856320881931658, 0.11085748160625765,
        -0.14284222233525734, 0.19999958001037396, -0.3333333293153316,
    ),
    # 2**-62.0
    "double": (
        -0.008375240895852164, 0.023670793209294008, -0.03713034895127485, 0.04589951065935331,
        -0.05230155314403984, 0.05877834838751706, -0.06666227299245812, 0.07692277827622666, -0.09090907715334473,
        0.11111111070368729, -0.1428571428500407, 0.1999999999999381, -0.33333333333333315,
    ),
}  # fmt: skip

#: The binary digits of 2 / pi, after eight zeros.
_TWO_OVER_PI = (0x00A2F9836E4E4415, 0x29FC2757D1F534DD, 0xC0DB6295993C4390, 0x41FE5163ABDEBBC5)


def _quarters_of_huge(size: Value) -> tuple[Value, Value]:
    """q and r with x = q pi / 2 + r, of float64 values from 2**20 on that are float32 numbers; q is right modulo 4.

    x is m 2**e with m < 2**24. The digits of 2 / pi whose products with x are multiples of 4 are left out, 96 more are
    multiplied with m in integers, and the two highest bits of the product are q.
    """
    bits = size.bits("u")
    m = ((bits >> 29) & 0x7FFFFF) | 0x800000
    start = (bits >> 52) - (1023 + 23 - 6)
    shift = start & 63
    later = start > 63
    w = [size.like(word, bits.dtype) for word in _TWO_OVER_PI]
    a, b, c = [select(later, w[i + 1], w[i]) for i in range(3)]
    first = (a << shift) | ((b >> 1) >> (63 - shift))
    second = ((b << shift) | ((c >> 1) >> (63 - shift))) >> 32
    turns = m * first + ((m * second) >> 32)
    q = (turns + 2**61) >> 62
    part = (turns - (q << 62)).cast(np.dtype("int64"))
    r = fma(_floating(part >> 30), 2.0**-32, _floating(part & (2**30 - 1)) * 2.0**-62)
    return q.cast(np.dtype("int64")), r * HALF_PI[0]


def _quarters(size: Value) -> tuple[Value, Value]:
    """q and r with abs(x) = q pi / 2 + r and abs(r) <= pi / 4, of float64 values that are float32 numbers."""
    k, q = _rounded(fma(size, 2 / math.pi, _FORMATS[FLOAT64].magic))
    r = fma(k, -HALF_PI[1], fma(k, -HALF_PI[0], size))
    huge_q, huge_r = _quarters_of_huge(size)
    huge = (size > 2.0**24) & (size < INF)
    return select(huge, huge_q, q), select(huge, huge_r, r)


def _sin_cos(r: Value, precision: str) -> tuple[Value, Value]:
    square = r * r
    sine = fma(_poly(square, _SIN, precision) * square, r, r)
    return sine, fma(fma(_poly(square, _COS, precision), square, -0.5), square, 1)


def _signed(y: Value, sign_bit: Value) -> Value:
    """y, negated where the second bit of an integer is set."""
    return (y.bits() ^ ((sign_bit & 2) << 62)).bits("f")


def _sin(x: Value, precision: str) -> Value:
    q, r = _quarters(abs(x))
    sine, cosine = _sin_cos(r, precision)
    return _signed(select((q & 1) == 0, sine, cosine), q ^ ((x.bits() >> 62) & 2))


def _cos(x: Value, precision: str) -> Value:
    q, r = _quarters(abs(x))
    sine, cosine = _sin_cos(r, precision)
    return _signed(select((q & 1) == 0, cosine, sine), q + 1)


def _tan(x: Value, precision: str) -> Value:
    q, r = _quarters(abs(x))
    sine, cosine = _sin_cos(r, precision)
    even = (q & 1) == 0
    y = select(even, sine, -cosine) / select(even, cosine, sine)
    return _signed(y, (x.bits() >> 62) & 2)


def _arcsin_part(x: Value, precision: str) -> tuple[Value, Value, Value]:
    """Whether abs(x) > 0.5, and arcsin(x) as a sum of two; there it is that of sqrt((1 - abs(x)) / 2) instead.

    The latter is arccos(abs(x)) / 2.
    """
    size = abs(x)
    outer = size > 0.5
    square = select(outer, fma(size, -0.5, 0.5), x * x)
    s = select(outer, square.sqrt(), x)
    return outer, s, _poly(square, _ARCSIN, precision) * square * s


def _arcsin(x: Value, precision: str) -> Value:
    outer, s, rest = _arcsin_part(x, precision)
    total = HALF_PI[0] - s * 2
    lost = (HALF_PI[0] - total) - s * 2
    return select(outer, total + (lost - fma(rest, 2, -HALF_PI[1])), s + rest).copysign(x)


def _arccos(x: Value, precision: str) -> Value:
    outer, s, rest = _arcsin_part(x, precision)
    part = s + rest
    left = PI[0] - (part * 2 - PI[1])
    return select(outer, select(x < 0, left, part * 2), HALF_PI[0] - (part - HALF_PI[1]))


def _angle(y: Value, x: Value, precision: str) -> tuple[Value, Value, Value]:
    """base, low and p with arctan(y / x) = base + low + p, of numbers that are not negative."""
    near, far = y <= x * 0.5, y > x * 2.414
    t = select(near, y, select(far, -x, y - x)) / select(near, x, select(far, y, y + x))
    square = t * t
    base, low = [select(near, 0, select(far, t.like(a), b)) for a, b in zip(HALF_PI, QUARTER_PI, strict=True)]
    return base, low, fma(_poly(square, _ARCTAN, precision) * square, t, t)


def _arctan(x: Value, precision: str) -> Value:
    base, low, p = _angle(abs(x), x.like(1), precision)
    return (base + (low + p)).copysign(x)


def _arctan2(y: Value, x: Value, precision: str) -> Value:
    height, width = abs(y), abs(x)
    both = (height == width) & ((height == INF) | (height == 0))  # as if on the diagonal, or on the axis
    scale = select((height > 2.0**1000) | (width > 2.0**1000), x.like(2.0**-50), 1)
    width = select(both, 1, width * scale)
    height = select(both & (height == INF), 1, height * scale)
    base, low, p = _angle(height, width, precision)
    left = x.bits() < 0
    angle = select(left, (PI[0] - base) + ((PI[1] - low) - p), base + (low + p))
    return select(x.is_nan() | y.is_nan(), NAN, angle).copysign(y)


sin, cos, tan = _through_float64(_sin), _through_float64(_cos), _through_float64(_tan)
arcsin, arccos, arctan = _through_float64(_arcsin), _through_float64(_arccos), _through_float64(_arctan)
arctan2 = _through_float64(_arctan2)


# -- the table -----------------------------------------------------------------------------------------------------


class Function(NamedTuple):
    """A formula, and the largest error of its results in ulp; None where a dtype is not offered."""

    build: Callable[..., Value]
    float32: float | None
    float64: float | None

    def ulp(self, dtype: DType | str) -> float | None:
        return {FLOAT32: self.float32, FLOAT64: self.float64}.get(np.dtype(dtype))

    def offers(self, dtype: DType | str) -> bool:
        return self.ulp(dtype) is not None


FUNCTIONS: dict[str, Function] = {
    "exp": Function(exp, 1.1, 1),
    "exp2": Function(exp2, 1.5, 1.5),
    "expm1": Function(expm1, 2, 2),
    "log": Function(log, 1, 1),
    "log1p": Function(log1p, 2, 2),
    "log2": Function(log2, 2, 2),
    "log10": Function(log10, 2, 2),
    "sigmoid": Function(sigmoid, 2, 2),
    "softplus": Function(softplus, 2, 2),
    "tanh": Function(tanh, 1.1, 1.1),
    "sinh": Function(sinh, 2, 2),
    "cosh": Function(cosh, 2, 2),
    "arcsinh": Function(arcsinh, 1, 2),
    "arccosh": Function(arccosh, 1, 2),
    "arctanh": Function(arctanh, 1, 2),
    "erf": Function(erf, 1, 2),
    "erfc": Function(erfc, 2, 2),
    "sin": Function(sin, 1, None),
    "cos": Function(cos, 1, None),
    "tan": Function(tan, 1, None),
    "arcsin": Function(arcsin, 1, 2),
    "arccos": Function(arccos, 1, 2),
    "arctan": Function(arctan, 1, 2),
    "arctan2": Function(arctan2, 1, 2),
    "power": Function(power, 1, None),
}
