"""The selective scan of state-space models, step by step."""

import numpy as np


def selective_scan(
    u,
    delta,
    A,
    B,
    C,
    D=None,
    *,
    delta_softplus=False,
    initial_state=None,
    return_last_state=False,
):
    """See bwt.ops.selective_scan; arrays in, float64 arrays out."""
    options = {"delta_softplus": delta_softplus, "initial_state": initial_state}
    states = selective_scan_states(u, delta, A, B, **options)
    y = (states * np.asarray(C, np.float64)[:, :, None, :]).sum(axis=-1)
    if D is not None:
        y = y + _of_each(D, 1, len(y))[:, None] * np.asarray(u, np.float64)
    if not return_last_state:
        return y
    shape = (len(y), *np.shape(A)[-2:])
    return y, states[:, -1] if states.shape[1] else _initial(initial_state, shape)


def selective_scan_states(
    u, delta, A, B, *, delta_softplus=False, initial_state=None
) -> np.ndarray:
    """h after each step, [B, L, E, N]."""
    u, delta, B = (np.asarray(x, np.float64) for x in (u, delta, B))
    A = _of_each(A, 2, len(u))
    step = _softplus(delta) if delta_softplus else delta
    states = np.zeros((*u.shape, A.shape[2]))
    h = _initial(initial_state, A.shape)
    for t in range(u.shape[1]):
        decay = np.exp(step[:, t, :, None] * A)
        h = decay * h + (step[:, t] * u[:, t])[:, :, None] * B[:, t, None, :]
        states[:, t] = h
    return states


def selective_scan_backward(
    grad_y,
    u,
    delta,
    A,
    B,
    C,
    D=None,
    *,
    delta_softplus=False,
    initial_state=None,
    grad_last_state=None,
):
    """Gradients of u, delta, A, B, C, D (of D also where there is none) and, if there is one, of
    initial_state, given that of y and that of the last state (None: zeros).

    With g_t = C_t grad_y_t + exp(step_{t+1} A) g_{t+1} the gradient at h_t, each of the others is
    that of one factor in h_t = exp(step A) h_{t-1} + step u B.
    """
    grad_y, u, delta, B, C = (np.asarray(x, np.float64) for x in (grad_y, u, delta, B, C))
    step = _softplus(delta) if delta_softplus else delta
    options = {"delta_softplus": delta_softplus, "initial_state": initial_state}
    states = selective_scan_states(u, delta, A, B, **options)
    shape, A = np.shape(A), _of_each(A, 2, len(u))
    before = np.concatenate([_initial(initial_state, A.shape)[:, None], states], axis=1)
    grad_u, grad_step = np.zeros_like(u), np.zeros_like(u)
    grad_A, grad_B = np.zeros_like(A), np.zeros_like(B)
    grad_C = (grad_y[..., None] * states).sum(axis=2)
    g = _initial(grad_last_state, A.shape)
    for t in reversed(range(u.shape[1])):
        g = g + grad_y[:, t, :, None] * C[:, t, None, :]
        grad_B[:, t] = (g * (step[:, t] * u[:, t])[..., None]).sum(axis=1)
        grad_input = (g * B[:, t, None, :]).sum(axis=-1)
        g = g * np.exp(step[:, t, :, None] * A)
        along = g * before[:, t]
        grad_A += along * step[:, t, :, None]
        grad_step[:, t] = (along * A).sum(axis=-1) + grad_input * u[:, t]
        grad_u[:, t] = grad_input * step[:, t]
    grad_D = (grad_y * u).sum(axis=1)
    if D is not None:
        grad_u += _of_each(D, 1, len(u))[:, None] * grad_y
    grad_delta = grad_step * (np.exp(delta - step) if delta_softplus else 1.0)
    grad_A = _of_models(grad_A, shape)
    grad_D = _of_models(grad_D, shape[:-1] if D is None else np.shape(D))
    gradients = (grad_u, grad_delta, grad_A, grad_B, grad_C, grad_D)
    return gradients if initial_state is None else (*gradients, g)


def _initial(state, shape) -> np.ndarray:
    """A state [B, E, N] that is not changed later, zeros if there is none."""
    return np.zeros(shape) if state is None else np.asarray(state, np.float64)


def _of_each(parameter, ndim, batch) -> np.ndarray:
    """Of each sequence, from one of all (ndim dimensions) or from one of each model."""
    parameter = np.asarray(parameter, np.float64)
    models = parameter if parameter.ndim > ndim else parameter[None]
    return np.repeat(models, batch // len(models), axis=0)


def _of_models(gradients, shape) -> np.ndarray:
    """The gradient of a parameter of this shape, from that of each sequence."""
    models = shape[0] if len(shape) == gradients.ndim else 1
    sums = gradients.reshape(models, len(gradients) // models, *gradients.shape[1:]).sum(axis=1)
    return sums.reshape(shape)


def _softplus(x) -> np.ndarray:
    return np.logaddexp(x, 0.0)
