"""Tiles found by trying: times candidates of every kernel on a GPU, for `bwt tune`."""
