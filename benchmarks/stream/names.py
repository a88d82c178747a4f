"""What `sfr-cl stream` knows by name, apart from what makes it: help waits for no import."""

DATA = ("elec2", "mnist")
METHODS = ("sfr-stream", "no-change", "logistic", "hoeffding", "forest", "sgd", "network")
