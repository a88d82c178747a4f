"""Time and memory of kernel, sums, fit and prediction, against other packages."""
