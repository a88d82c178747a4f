"""Experiments on the posteriors and strategies, and the command line that runs them."""
