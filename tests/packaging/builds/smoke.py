"""One call of each op against the NumPy reference, forward and backward: is this build sound?

Gradients are compared with central differences of the reference in float64. A bad build is wrong by
far more than rounding, so the tolerance is generous: the fine ones are those of the tests.
"""

import numpy as np
import torch

import bwt
from bwt import ops, reference

STEP = 1e-5
# Of central differences: STEP^2 / 6 times a third derivative, some 1 / p^3 of probabilities p.
DIFFERENCES = 1e-7


def numerical_gradient(function, arrays, index):
    gradient = np.zeros_like(arrays[index])
    for place in np.ndindex(gradient.shape):
        moved = [[array.copy() for array in arrays] for _ in range(2)]
        for copy, sign in zip(moved, (1, -1), strict=True):
            copy[index][place] += sign * STEP
        gradient[place] = (function(*moved[0]) - function(*moved[1])) / (2 * STEP)
    return gradient


def compare(found: torch.Tensor, expected: np.ndarray, what: str, inexact: float = 0.0) -> None:
    error = np.abs(found.detach().double().numpy() - expected).max()
    rounding = 1000 * torch.finfo(found.dtype).eps
    bound = (rounding + inexact) * max(1.0, np.abs(expected).max())
    if not error <= bound:
        raise SystemExit(f"smoke: {what} is off by {error:.3g}, which is more than {bound:.3g}")


def check(name: str, function, oracle, tensors) -> None:
    """function and oracle return one output each; its sum is differentiated by every tensor."""
    leaves = [x.clone().requires_grad_() for x in tensors]
    found = function(*leaves)
    arrays = [x.double().numpy() for x in tensors]
    compare(found, oracle(*arrays), name)
    found.sum().backward()
    for i, leaf in enumerate(leaves):
        slope = numerical_gradient(lambda *moved: oracle(*moved).sum(), arrays, i)
        gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        compare(gradient, slope, f"{name}, gradient {i}", DIFFERENCES)


def draw(*shape: int, simplex: bool = False, dtype=torch.float64) -> torch.Tensor:
    x = torch.rand(*shape, dtype=dtype) + 0.1
    return x / x.sum(-1, keepdim=True) if simplex else x


def main() -> None:
    torch.manual_seed(0)
    heads = [draw(2, 2, 5, 8, dtype=torch.float32) for _ in range(3)]
    check(
        "attention", lambda *x: ops.attention(*x).out, lambda *x: reference.attention(*x).out, heads
    )

    keys, values = torch.tensor([[0, 2, 1], [3, 0, 3]]), torch.tensor([[1, 0, 3], [2, 2, 1]])
    check(
        "bijection_posterior",
        lambda c: ops.bijection_posterior(keys, values, 4, channel=c).log_evidence,
        lambda c: reference.bijection_posterior(keys.numpy(), values.numpy(), 4, channel=c)[2],
        [draw(4, 4, simplex=True)],
    )
    seen = torch.tensor([[0, 1, 2, 1], [2, 2, 0, 1]])
    model = [draw(3, simplex=True), draw(3, 3, simplex=True), draw(3, 3, simplex=True)]
    for op in ("hmm_filter", "hmm_smooth"):
        check(
            op,
            lambda *x, op=op: getattr(ops, op)(seen, *x).log_likelihood,
            lambda *x, op=op: getattr(reference, op)(seen.numpy(), *x).log_likelihood,
            model,
        )
    smoothed = reference.hmm_smooth(seen.numpy(), *(x.numpy() for x in model)).smoothed
    compare(ops.hmm_smooth(seen, *model).smoothed, smoothed, "hmm_smooth, smoothed")

    x, weight = draw(3, 8, dtype=torch.float32), draw(8, dtype=torch.float32)
    check("gelu", ops.gelu, reference.gelu, [x])
    check("gelu of a sum", ops.gelu, reference.gelu, [x, weight])
    check("add_bias", ops.add_bias, reference.add_bias, [x, weight])
    check("rms_norm", ops.rms_norm, reference.rms_norm, [x, weight])
    both = [x, 2 * x, weight, weight]
    for part in (0, 1):  # the sum, and what the norm makes of it
        check(
            "add_rms_norm",
            lambda *x, part=part: ops.add_rms_norm(*x)[part],
            lambda *x, part=part: reference.add_rms_norm(*x)[part],
            both,
        )
    scan = [draw(2, 4, 3), draw(2, 4, 3), -draw(3, 2), draw(2, 4, 2), draw(2, 4, 2)]
    check("selective_scan", ops.selective_scan, reference.selective_scan, scan)
    print(f"smoke: every op of bwt {bwt.__version__} agrees with the reference, gradients too")


if __name__ == "__main__":
    main()
