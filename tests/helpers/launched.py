"""Names of the Triton kernels that this process launches, in their order."""

from bwt.kernels.configs import Launch

_names: list[str] = []
_run = Launch.run


def _recorded(self, device):
    _names.append(self.name)
    return _run(self, device)


def take() -> list[str]:
    """Return the names since the last call, and record from now on."""
    Launch.run = _recorded
    names = list(_names)
    _names.clear()
    return names
