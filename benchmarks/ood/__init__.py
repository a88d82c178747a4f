"""Calibration, and out-of-distribution detection, on images."""
