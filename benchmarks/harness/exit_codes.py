"""What a command tells the shell."""

DONE = 0
FAILED = 1
"""Some rows could not be made; the others were written."""
WRONG_USE = 2
"""An option, the data, a file or a package is not as it must be; what was there is as it was."""
INTERRUPTED = 130
"""Ctrl-C, as shells have it; what was finished was written."""
