"""How hmm_filter and hmm_smooth are called: registration, bad input, backends."""

import pytest
import torch
from helpers.hmm_models import OWN, draw

from bwt.ops.hmm_filter import hmm_filter
from bwt.ops.hmm_smooth import hmm_smooth


@pytest.mark.parametrize("lengths", [None, torch.tensor([5, 0, 3])])
@pytest.mark.parametrize("own", [OWN, (True, False, False)])
def test_opcheck(lengths, own):
    y, *parameters = draw(3, 5, 4, 3, torch.float32, own=own)
    leaves = [x.requires_grad_() for x in parameters]
    torch.library.opcheck(torch.ops.bwt.hmm_filter.default, (y, *leaves, lengths))
    plain = [x.detach() for x in leaves]
    saved = hmm_filter(y, *plain, lengths=lengths)
    arguments = (y, *plain, lengths, *saved)
    torch.library.opcheck(torch.ops.bwt.hmm_smooth.default, arguments)
    gradients = (torch.ones_like(saved.filtered), None, torch.ones(3))
    torch.library.opcheck(torch.ops.bwt.hmm_filter_backward.default, (*gradients, *arguments))


def test_module_compiles_without_graph_break():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.logits = torch.nn.ParameterList(
                [torch.randn(4), torch.randn(4, 4), torch.randn(4, 6)]
            )

        def forward(self, y):
            parameters = [x.softmax(-1) for x in self.logits]
            got = hmm_filter(y, *parameters)
            return got.log_likelihood.sum() + got.filtered.square().sum(), hmm_smooth(
                y, *parameters
            ).smoothed

    model = Model()
    y = torch.randint(6, (3, 9))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    results = []
    for module in (model, compiled):
        model.zero_grad()
        loss, smoothed = module(y)
        loss.backward()
        results.append((loss, smoothed, *(x.grad.clone() for x in model.logits)))
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two)


Y = torch.tensor([[0, 1, -1], [2, 0, 1]])
PI, A, E = torch.full((4,), 0.25), torch.full((4, 4), 0.25), torch.full((4, 3), 1 / 3)


def changed(x, place, value):
    x = x.clone()
    x[place] = value
    return x


BAD_INPUT = {
    "list": (([[0]], PI, A, E), {}, "observations must be an int32 or int64 tensor, got list"),
    "float observations": ((Y.float(), PI, A, E), {}, "observations must be an int32 or int64"),
    "one dimension": ((Y[0], PI, A, E), {}, r"observations must be \[batch, steps\], got shape"),
    "integers": ((Y, PI.int(), A, E), {}, "initial must be a float16 or .* or float64 tensor, got"),
    "half": ((Y, PI.half(), A, E), {}, "must agree in dtype .* got transition torch.float32"),
    "dtypes differ": ((Y, PI, A.double(), E), {}, "must agree in dtype .* got transition"),
    "dimensions": ((Y, PI, PI, E), {}, "transition must have 2 dimensions, or one more"),
    "not square": ((Y, PI, E, E), {}, r"transition must be \[4, 4\] or \[2, 4, 4\]"),
    "batch differs": ((Y, PI.expand(3, 4), A, E), {}, r"initial must be \[4\] or \[2, 4\]"),
    "too many states": ((Y, torch.ones(129), A, E), {}, "takes 1 to 128 states and 1 to 4096"),
    "no symbols": ((Y, PI, A, E[:, :0]), {}, "got 4 .initial. and 0 .emission."),
    "symbol": ((changed(Y, (1, 2), 3), PI, A, E), {}, r"observations\[1, 2\] is 3; must be 0 to 2"),
    "below -1": ((changed(Y, (0, 1), -2), PI, A, E), {}, r"observations\[0, 1\] is -2"),
    "beyond int32": ((changed(Y, (0, 1), 2**32), PI, A, E), {}, r"observations\[0, 1\] is 42949"),
    "initial": ((Y, 2 * PI, A, E), {}, r"initial is not a distribution \(sum 2"),
    "transition": ((Y, PI, changed(A, (2, 1), 0.3), E), {}, r"transition\[2\] is not a distrib"),
    "emission": (
        (Y, PI, A, changed(E.expand(2, 4, 3), (1, 3, 0), -0.5)),
        {},
        r"emission\[1, 3\] is not a distribution \(sum 0.166667, smallest entry -0.5\)",
    ),
    "NaN": ((Y, changed(PI, 0, torch.nan), A, E), {}, "initial is not a distribution"),
    "lengths shape": ((Y, PI, A, E), {"lengths": Y[:, 0:1]}, r"lengths must be \[2\] on cpu"),
    "lengths dtype": ((Y, PI, A, E), {"lengths": [1, 2]}, "lengths must be an int32 or int64"),
    "length": ((Y, PI, A, E), {"lengths": torch.tensor([3, 4])}, r"lengths\[1\] is 4; must be 0"),
    "backend": ((Y, PI, A, E), {"backend": "numpy"}, "no backend 'numpy'; choose one of auto"),
}


@pytest.mark.parametrize("backend", ["native", "torch", "reference"])
@pytest.mark.parametrize("op", [hmm_filter, hmm_smooth])
@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_answered_with_one_clear_line(op, name, backend):
    inputs, options, message = BAD_INPUT[name]
    with pytest.raises(ValueError, match=f"{op.__name__}: .*{message}") as caught:
        op(*inputs, **{"backend": backend, **options})
    assert "\n" not in str(caught.value)


def test_bad_values_in_the_many_state_kernel():
    y, *parameters = draw(3, 4, 12, 3)
    for place in range(3):
        wrong = [x.clone() for x in parameters]
        wrong[place][(2,) + (0,) * (wrong[place].ndim - 1)] += 1
        with pytest.raises(ValueError, match=r"\[2.*is not a distribution"):
            hmm_filter(y, *wrong)
    with pytest.raises(ValueError, match=r"observations\[1, 3\] is 3"):
        hmm_filter(changed(y, (1, 3), 3), *parameters)


def test_bad_values_are_noticed_in_compiled_code():
    compiled = torch.compile(hmm_filter, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(Y, PI, A, E).filtered, hmm_filter(Y, PI, A, E).filtered)
    with pytest.raises(RuntimeError, match="hmm_filter: .* parameters are out of range"):
        compiled(Y, 2 * PI, A, E)


def test_rows_may_be_rounded():
    A16 = torch.rand(4, 4).softmax(-1).half().float()
    assert (A16.sum(-1) != 1).any()
    hmm_filter(Y, PI, A16 / A16.sum(-1, keepdim=True) * (1 + 5e-5), E)


def test_triton_is_refused_for_cpu_tensors():
    with pytest.raises(RuntimeError, match="backend 'triton' cannot serve: serves CUDA tensors"):
        hmm_filter(Y, PI, A, E, backend="triton")


@pytest.mark.parametrize("op", [hmm_filter, hmm_smooth])
def test_reference_backend(op):
    got, expected = op(Y, PI, A, E, backend="reference"), op(Y, PI, A, E)
    for one, two in zip(got, expected, strict=True):
        torch.testing.assert_close(one, two)
    with pytest.raises(RuntimeError, match=f"{op.__name__}: backend 'reference' has no gradient"):
        op(Y, PI.clone().requires_grad_(), A, E, backend="reference")
