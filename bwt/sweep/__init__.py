"""Many runs of one grid: each cell a `bwt` command of its own process and its own run directory.

Nothing is kept in memory that a crash could lose: what is done is read off the files, so the same
sweep started again does what is left, and a cell cut short goes on from its last checkpoint.
"""
