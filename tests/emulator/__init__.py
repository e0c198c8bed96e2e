"""Execution of GPU code without a GPU; README.md describes its use and its limits."""
