"""Run directories: what a run leaves behind, how it was configured, and how to read it again."""
