"""A few numbers out of a run's geometry.json, if it has one."""

from pathlib import Path
from typing import Any

from bwt.runs.files import read_json


def summary(run: Path) -> dict[str, float]:
    """Names of numbers as in the tables; those that the file does not have are left out."""
    path = run / "geometry.json"
    if not path.exists():
        return {}
    found = read_json(path)
    numbers = {}
    for part in (_keys, _attention, _manifold, _clusters, _ablation):
        try:
            numbers |= part(found)
        except (KeyError, IndexError):  # a model without attention or blocks, or not run
            continue
    return {name: value for name, value in numbers.items() if value is not None}


def _mean(values: Any) -> float:
    """Over heads, where there are several."""
    return sum(values) / len(values) if isinstance(values, list) else values


def _keys(found: dict[str, Any]) -> dict[str, float]:
    keys = found["keys"]
    return {
        "key_cosine": _mean(keys["trained"]["plain"][0]["mean"]),
        "key_cosine_untrained": _mean(keys["untrained"]["plain"][0]["mean"]),
        "key_cosine_centred": _mean(keys["trained"]["centred"][0]["mean"]),
    }


def _attention(found: dict[str, Any]) -> dict[str, float]:
    layers = [_mean(layer["entropy"]["mean"]) for layer in found["attention"]["layers"]]
    return {"attention_entropy_first": layers[0], "attention_entropy_last": layers[-1]}


def _manifold(found: dict[str, Any]) -> dict[str, float]:
    """Of the last attention's output, or the last states of a model without attention."""
    clouds = found["manifold"]["clouds"]
    name = [x for x in clouds if x.startswith("attention")] or list(clouds)
    cloud = clouds[name[-1]]
    first = cloud["first"]
    return {
        "pc1": cloud["share"][0],
        "entropy_r2": (first["r2"] or {}).get("mean"),
        "entropy_r2_within": (first["r2_within"] or {}).get("mean"),
    }


def _clusters(found: dict[str, Any]) -> dict[str, float]:
    trained = found["clusters"]["trained"]
    return {"clusters": trained["clusters"], "clusters_rand": trained["rand"]}


def _ablation(found: dict[str, Any]) -> dict[str, float]:
    """By how much the entropy error grows without a layer; KL added without a head, in bits."""
    parts = [x for x in found["ablation"]["parts"] if x["mode"] == "zero"]
    layers = [x["entropy_mae_factor"] for x in parts if x["part"] == "block"]
    heads = sorted((x["kl_added"]["mean"] for x in parts if x["part"] == "head"), reverse=True)
    numbers = {"layer_least": min(layers), "layer_most": max(layers)} if layers else {}
    if heads:
        numbers["head_most"] = heads[0]
    if len(heads) > 1:
        numbers["head_second"] = heads[1]
    return numbers
