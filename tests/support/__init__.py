"""What several test modules need; pytest puts `tests` on the path, so that they import it."""
