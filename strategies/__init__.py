"""Continual-learning strategies."""
