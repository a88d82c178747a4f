"""The paper's first figure: a gap in the data, closed by conditioning."""
