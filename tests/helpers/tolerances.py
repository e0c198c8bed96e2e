"""The only place with error bounds. Each is derived; none depends on the environment."""

import torch


def rounding(dtype: torch.dtype, scale: float = 1.0) -> float:
    """A value of size `scale`, computed in float64 and rounded once; 2 eps leaves room for the
    float64 computation itself."""
    return 2 * torch.finfo(dtype).eps * max(scale, 1.0)


def subset_sums(num_symbols: int, steps: int) -> float:
    """Probabilities from sums of non-negative products in float64. Relative errors add along a
    product of up to `steps` likelihoods and `num_symbols` sums, and sums of non-negative terms do
    not amplify them. A probability is a quotient of two such sums, and it is compared with one."""
    return torch.finfo(torch.float64).eps * (2.0 * steps + 4.0 * num_symbols)


def subset_slopes(num_symbols: int, steps: int, scale: float) -> float:
    """d(loss) / d(log of an entry of the channel), where `scale` is the sum of the sizes of
    d(loss) / d(log of a row's probability). Each of them reaches an entry as often as it was
    observed, at most `steps` times, as a difference of such sums as `subset_sums` is about."""
    return subset_sums(num_symbols, steps) * steps * scale


def subset_gradient(num_symbols: int, steps: int, batch: int) -> float:
    """The gradient in the logarithm of a channel, relative to its largest entry: a sum over
    batch * steps rows, of either sign, of products of two such probabilities, on both sides."""
    return 4 * batch * steps * subset_sums(num_symbols, steps)


def running_sum(steps: int, scale: float) -> float:
    """A float64 sum of `steps` terms of one sign and total size `scale`, on both sides."""
    return 2 * steps * torch.finfo(torch.float64).eps * scale


def attention_error(dtype: torch.dtype, keys: int, size: int) -> float:
    """Attention with standard normal inputs, relative to the largest entry of a result. A score is
    a sum of `size` products of order 1 (worst error size * eps, typical a few eps), a row sum and a
    mean over values one of `keys`; gradients chain two such sums. Rounding errors of independent
    signs grow with the square root of the length; 24 covers the constants and the chain."""
    return 24 * torch.finfo(dtype).eps * (keys**0.5 + size**0.5)


def hmm_error(dtype: torch.dtype, states: int, steps: int = 1) -> float:
    """Filtering, relative to the largest entry of a result. A step is a sum of `states`
    non-negative products, a product and a quotient: a relative error of at most states + 4
    roundings, which nothing amplifies, as nothing cancels. What a filter forgets takes its errors
    along, so that those of a distribution are of a few steps; a sum over `steps` of them grows
    with its root, their signs being independent. 16 covers the steps remembered."""
    return 16 * torch.finfo(dtype).eps * (states + 4) * max(steps, 1) ** 0.5


def hmm_relative_error(dtype: torch.dtype, states: int, steps: int) -> float:
    """Filtering and smoothing, relative to each entry. A step is a sum of `states` products without
    signs, a product and a quotient, so errors of at most states + 6 roundings add up over the
    steps, and over as many backwards."""
    return 2 * torch.finfo(dtype).eps * (states + 6) * max(steps, 1)


def scan_error(dtype: torch.dtype, steps: int, terms: int) -> float:
    """The selective scan with fading states, relative to the largest entry of a result. A state is
    a sum over the steps it remembers of products with one exponential each, of a few roundings; a
    result sums `terms` of them, a gradient of a parameter over all steps. Rounding errors of
    independent signs grow with the square root of the number of terms; 16 covers the constants.
    Halves are computed in float32 and rounded once, by at most half a unit in the last place, or a
    whole one where digits are cut off (Triton's interpreter does so)."""
    if dtype in (torch.float16, torch.bfloat16):
        return torch.finfo(dtype).eps + scan_error(torch.float32, steps, terms)
    return 16 * torch.finfo(dtype).eps * (max(steps, 1) ** 0.5 + max(terms, 1) ** 0.5)


def reordered_sums(dtype: torch.dtype, terms: int) -> float:
    """A small model whose products are sums of up to `terms` products of order 1, and its
    gradients, computed in another order, relative to the largest entry of a result. Rounding
    errors of independent signs grow with the root of the number; 16 covers a chain of layers."""
    return 16 * torch.finfo(dtype).eps * terms**0.5


def gelu_error(dtype: torch.dtype, x: float) -> float:
    """GELU and its slope at |x| or below, absolute. A normal tail of at most 1/2 has the errors of
    an exponential and of a polynomial, a few units in the last place, and in torch the rounding of
    x^2 / 2, which shrinks with the tail; the distribution function is at most 1 and x times it has
    the error of x."""
    return 4 * torch.finfo(dtype).eps * max(1.0, x)


def gelu_tail_error(dtype: torch.dtype) -> float:
    """GELU at negative x, relative: an exponential, a polynomial and a few products, each within a
    few units in the last place, here and in the reference."""
    return 8 * torch.finfo(dtype).eps


def norm_error(dtype: torch.dtype, terms: int) -> float:
    """A normalised row of standard normal entries and its gradients, relative to the largest entry
    of a result: sums of `terms` products, whose rounding errors are of independent signs, behind a
    few roundings; 8 covers those."""
    return 8 * torch.finfo(dtype).eps * max(terms, 1) ** 0.5


def slope_error(dtype: torch.dtype, roundings: int) -> float:
    """A gradient along a direction against a central difference, relative to the sum of the sizes
    of its terms: each has so many roundings, and 1e-7 is for the difference itself (step^2 and
    eps / step)."""
    return roundings * torch.finfo(dtype).eps + 1e-7


def model_error(dtype: torch.dtype) -> float:
    """Logits and gradients of a model of the paper's size against float64, relative to the largest
    of each: some ten layers in each direction, 20, with sums of up to 2,500 positions, whose
    rounding errors of independent signs grow with the root, 50; 8 for terms that cancel."""
    return 20 * 50 * 8 * torch.finfo(dtype).eps


def training_error(dtype: torch.dtype) -> float:
    """Losses of a few updates of a small model, and the gradients of the first, relative to the
    largest: two computations that add the same terms in other orders, through some ten layers in
    each direction with sums of up to 64 terms. Rounding errors of independent signs grow with the
    root of that number: 20 * 8, and 8 times more for what two updates do with it. In bf16 sums are
    kept in float32 and the results of layers are rounded: 20, and half as much again."""
    return (30 if dtype == torch.bfloat16 else 20 * 8 * 8) * torch.finfo(dtype).eps
