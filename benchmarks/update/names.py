"""What `sfr-cl update` knows by name, apart from what makes it: help waits for no import."""

REGRESSION = ("airfoil", "boston", "protein")
CLASSIFICATION = ("digits", "satellite", "vehicle", "waveform")
