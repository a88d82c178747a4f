"""What `sfr-cl ood` knows by name, apart from what makes it: help waits for no import."""

METHODS = ("map", "kron-glm", "gp-subset", "sfr", "sfr-last-layer")
