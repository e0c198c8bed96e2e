"""Execution of GPU code without a GPU; README.md says how it is used and what it proves."""
