"""Pictures and pages of results: what a command found, for the terminal, a README and a browser."""
