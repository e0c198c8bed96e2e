"""The gradient of each output of an op alone, and which kernels compute it."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from helpers.op_calls import OpCalls
from helpers.strided import calls, expected_gradients, gradients, noise_like, results, run

CALLS = {call.name: call for call in calls(torch.float64) if call.differentiable}
del CALLS["bijection_posterior noisy V7"], CALLS["hmm_filter S40 own"]  # slow in eager torch


def with_options(name, **options):
    return replace(CALLS[name], arguments={**CALLS[name].arguments, **options})


CALLS["captures"] = with_options(
    "attention T5 D6", capture=("received", "max_logit", "argmax", "top_k=3")
)
CALLS["last state"] = with_options("selective_scan from a state E9", return_last_state=True)


@pytest.mark.parametrize("name", CALLS)
def test_each_output_alone(name):
    call = CALLS[name]
    incoming = partial(noise_like, dtype=call.dtype)
    for i in range(len(results(run(call, "native")))):
        with OpCalls() as ran:
            got = gradients(call, "native", incoming, only=i)
        call.assert_close(got, expected_gradients(call, incoming, only=i), f"output {i}")
        kernels = [call.op, f"{call.op}_backward"]
        if (name, i) == ("add_rms_norm", 0):  # a sum, whose gradient is passed on
            kernels = [call.op]
        assert [op for op, _ in ran.seen] == kernels, f"output {i}"
