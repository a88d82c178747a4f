"""What `sfr-cl update` knows by name, apart from what makes it: help waits for no import."""

DATA = ("airfoil", "boston", "protein")
