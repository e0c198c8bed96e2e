"""The script of a page, in the order in which its parts need each other."""

from importlib.resources import files

PARTS = ("dom", "hover", "navigation", "steps", "states", "training", "start")


def script() -> str:
    folder = files(__package__)
    text = "\n".join(folder.joinpath(f"{name}.js").read_text(encoding="utf-8") for name in PARTS)
    return f'<script>(function () {{\n"use strict";\n{text}\n}})();</script>'
