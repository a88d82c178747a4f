"""Where things are."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The folder of the repository."""
