"""The one exception that the executor raises."""


class PTXError(Exception):
    """A kernel did something wrong, or uses PTX that the executor does not know."""
