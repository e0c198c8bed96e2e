"""Small models and inputs for them, in float64."""

import torch

SHAPE = dict(vocab_size=7, num_outcomes=4, seq_len=9, feature_width=3, num_features=2)


def perturbed(model):
    with torch.no_grad():
        for p in model.parameters():  # a head of zeros would hide everything
            p.add_(0.1 * torch.randn_like(p))
    return model.double()


def inputs(batch=3):
    tokens = torch.randint(SHAPE["vocab_size"], (batch, 7))
    return tokens, torch.randn(batch, 2, 3, dtype=torch.float64)
