"""The selective scan of state-space models, step by step."""

import numpy as np


def selective_scan(u, delta, A, B, C, D=None, *, delta_softplus=False) -> np.ndarray:
    """See bwt.ops.selective_scan; arrays in, a float64 array out."""
    states = selective_scan_states(u, delta, A, B, delta_softplus=delta_softplus)
    y = (states * np.asarray(C, np.float64)[:, :, None, :]).sum(axis=-1)
    return y if D is None else y + np.asarray(D, np.float64) * np.asarray(u, np.float64)


def selective_scan_states(u, delta, A, B, *, delta_softplus=False) -> np.ndarray:
    """h after each step, [B, L, E, N]."""
    u, delta, A, B = (np.asarray(x, np.float64) for x in (u, delta, A, B))
    step = _softplus(delta) if delta_softplus else delta
    states = np.zeros((*u.shape, A.shape[1]))
    h = np.zeros((u.shape[0], *A.shape))
    for t in range(u.shape[1]):
        decay = np.exp(step[:, t, :, None] * A)
        h = decay * h + (step[:, t] * u[:, t])[:, :, None] * B[:, t, None, :]
        states[:, t] = h
    return states


def selective_scan_backward(grad_y, u, delta, A, B, C, D=None, *, delta_softplus=False):
    """Gradients of u, delta, A, B, C, D (of D also where there is none) given that of y.

    With g_t = C_t grad_y_t + exp(step_{t+1} A) g_{t+1} the gradient at h_t, each of the others is
    that of one factor in h_t = exp(step A) h_{t-1} + step u B.
    """
    grad_y, u, delta, A, B, C = (np.asarray(x, np.float64) for x in (grad_y, u, delta, A, B, C))
    step = _softplus(delta) if delta_softplus else delta
    states = selective_scan_states(u, delta, A, B, delta_softplus=delta_softplus)
    grad_u, grad_step = np.zeros_like(u), np.zeros_like(u)
    grad_A, grad_B = np.zeros_like(A), np.zeros_like(B)
    grad_C = (grad_y[..., None] * states).sum(axis=2)
    g = np.zeros((u.shape[0], *A.shape))
    for t in reversed(range(u.shape[1])):
        g = g + grad_y[:, t, :, None] * C[:, t, None, :]
        grad_B[:, t] = (g * (step[:, t] * u[:, t])[..., None]).sum(axis=1)
        grad_input = (g * B[:, t, None, :]).sum(axis=-1)
        g = g * np.exp(step[:, t, :, None] * A)
        along = g * (states[:, t - 1] if t > 0 else 0.0)
        grad_A += (along * step[:, t, :, None]).sum(axis=0)
        grad_step[:, t] = (along * A).sum(axis=-1) + grad_input * u[:, t]
        grad_u[:, t] = grad_input * step[:, t]
    grad_D = (grad_y * u).sum(axis=(0, 1))
    if D is not None:
        grad_u += np.asarray(D, np.float64) * grad_y
    grad_delta = grad_step * (np.exp(delta - step) if delta_softplus else 1.0)
    return grad_u, grad_delta, grad_A, grad_B, grad_C, grad_D


def _softplus(x) -> np.ndarray:
    return np.logaddexp(x, 0.0)
