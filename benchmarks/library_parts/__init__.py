"""Each part that was written by hand, beside the libraries that could replace it."""
