"""Test, then train: every sample is predicted before it is learned."""
