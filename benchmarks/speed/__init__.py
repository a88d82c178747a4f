"""Time and memory of kernel, sums, fit and prediction, against other packages."""

from sfr_cl import torchvision_operators

torchvision_operators.declare()  # before the first import of Avalanche
