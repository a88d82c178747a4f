"""SFR for Avalanche: a strategy, a plug-in, conditioning alone, metrics and checkpoints."""

from sfr_cl import torchvision_operators

torchvision_operators.declare()  # before the first import of Avalanche, which imports torchvision
