"""Posteriors as files of tensors and plain values."""
