"""Continual learning compared: data, scenarios, networks, strategies, and the run over them."""
