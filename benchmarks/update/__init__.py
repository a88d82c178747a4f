"""Conditioning against retraining: half of a data set arrives after the network was trained."""
