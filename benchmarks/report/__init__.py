"""What all pages share: the frame, style, kinds of plot, numbers, and means over seeds."""
