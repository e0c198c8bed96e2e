"""Parameters [C] of all rows [..., C], or [M, C] of M models with rows of their own."""

import numpy as np


def of_each_row(parameter, x: np.ndarray) -> np.ndarray:
    """In the shape of x, where those of a model follow one another."""
    parameter = np.atleast_2d(np.asarray(parameter, np.float64))
    rows = x.size // x.shape[-1]
    return np.repeat(parameter, rows // len(parameter), axis=0).reshape(x.shape)


def sum_of_rows(values: np.ndarray, parameter) -> np.ndarray:
    """Of each model, in the shape of the parameter."""
    parameter = np.asarray(parameter)
    models = len(parameter) if parameter.ndim == 2 else 1
    rows = values.size // values.shape[-1] // models
    return values.reshape(models, rows, -1).sum(1).reshape(parameter.shape)
