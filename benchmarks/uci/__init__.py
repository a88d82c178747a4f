"""The paper's table of eight classification sets: data, networks, methods, their run."""
