"""The paper's table of eight classification sets: data, networks, methods, and the run over them."""
