"""Records as tables of pandas, which is not installed with bwt."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from bwt.records.estimates import Estimate

if TYPE_CHECKING:
    import pandas


def to_dataframe(rows: Iterable[Any]) -> "pandas.DataFrame":
    """A row for each record or mapping, such as those of `geometry.ablation.parts`.

    What is nested gets a column by its path ("model.kl"), an estimate one for its mean and one for
    its standard error ("kl", "kl_se").

    Raises:
        ImportError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError("to_dataframe needs pandas: pip install pandas") from error
    return pandas.DataFrame([dict(_columns("", row)) for row in rows])


def _columns(name: str, value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, Estimate):
        yield from ((name, value.mean), (f"{name}_se", value.se))
        return
    if dataclasses.is_dataclass(value):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if not isinstance(value, Mapping):
        yield name, value
        return
    for key, item in value.items():
        yield from _columns(f"{name}.{key}" if name else str(key), item)
