"""Models whose states all but die out and come back, beyond the range of float32 and float64."""

import numpy as np


def distribution(*rows):
    x = np.array(rows, np.float64)
    return x / x.sum(-1, keepdims=True)


def coins(steps, other=(0.2, 0.8), one=(0.8, 0.2), start=(0.5, 0.5)):
    """Two coins of which one was chosen for good: zeros, then ones at the end."""
    y = np.zeros(steps, np.int64)
    y[-1] = 1
    return y, np.array(start), np.eye(2), np.array([one, other])


def certain_coins(steps):
    """The first coin always shows 0, and so the last observation tells that it was the other."""
    return coins(steps, one=(1.0, 0.0), other=(0.5, 0.5))


def never_entered(steps, shown=0.1):
    """The second of two absorbing states is never entered."""
    y, _, stay, _ = coins(steps)
    rest = 1 - shown
    return 0 * y, np.array([1.0, 0.0]), stay, np.array([[shown, rest], [rest, shown]])


def third_keeps_alive(steps, small=2.0**-83):
    """A third coin keeps the sum positive with a small number where the second would revive."""
    y = np.zeros(steps, np.int64)
    y[-4:] = 1
    shows = distribution([1.0, 0.0], [0.25, 0.75], [1 - small, small])
    return y, np.array([0.5, 0.25, 0.25]), np.eye(3), shows


def there_and_back(steps):
    """One coin gains on the other for half of the time and loses it all again."""
    y = (np.arange(steps) < steps // 2).astype(np.int64)
    return y, np.array([0.5, 0.5]), np.eye(2), np.array([[0.9, 0.1], [0.1, 0.9]])


def unentered_there_and_back(steps):
    """The same with an initial distribution that excludes the second."""
    y, _, stay, shows = there_and_back(steps)
    return 1 - y, np.array([1.0, 0.0]), stay, shows


def left_to_right(steps, states=3):
    """States are left for the next one only, and tell little of themselves."""
    rng = np.random.default_rng(steps)
    stay = np.diag(np.full(states, 0.75)) + np.diag(np.full(states - 1, 0.25), 1)
    stay[-1, -1] = 1.0
    shows = distribution(*rng.dirichlet(np.ones(3), size=states))
    return rng.integers(-1, 3, size=steps), np.eye(states)[0], stay, shows


def tiny_entries(steps, small):
    """A ring whose steps and errors are of the smallest probabilities."""
    stay = np.eye(3) + small * np.roll(np.eye(3), 1, 1)
    shows = np.array([[1.0, small, 0.0], [small, 1.0, small], [0.0, small, 1.0]])
    y = np.arange(steps) // 7 % 3
    return y, np.array([1.0, small, 0.0]), stay, shows


def impossible_after_long(steps):
    """What dies out and what cannot be are not the same: symbol 2 is never shown."""
    y, start, stay, _ = coins(steps)
    shows = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])
    y[-1] = 2
    return y, start, stay, shows


def cases(small):
    """By name, for a dtype whose smallest numbers are about `small`."""
    long = 150 if small > 1e-60 else 1300
    return {
        "coins": coins(long),
        "certain-coins": certain_coins(long),
        "never-entered": never_entered(long),
        "never-entered-0.5": never_entered(long, 0.5),
        "third-keeps-alive": third_keeps_alive(long, 2.0**-83 if small > 1e-60 else 2.0**-830),
        "there-and-back": there_and_back(2 * long),
        "unentered-there-and-back": unentered_there_and_back(2 * long),
        "left-to-right": left_to_right(long),
        "tiny-entries": tiny_entries(60, small),
        "impossible": impossible_after_long(long),
    }


def widened(model, states):
    """The same model with states that are never entered."""
    y, initial, transition, emission = model
    S, V = emission.shape
    start, stay, shows = np.zeros(states), np.eye(states), np.full((states, V), 1 / V)
    start[:S], stay[:S, :S], shows[:S] = initial, transition, emission
    return y, start, stay, shows
