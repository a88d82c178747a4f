"""Continual learning compared: data, scenarios, networks, strategies, and the run over them."""

from sfr_cl import torchvision_operators

torchvision_operators.declare()  # before the first import of torchvision or Avalanche
