"""What `sfr-cl uci` knows by name, apart from what makes it: help waits for no import."""

DATA = (
    "australian",
    "breast_cancer",
    "digits",
    "glass",
    "ionosphere",
    "satellite",
    "vehicle",
    "waveform",
)
