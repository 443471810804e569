"""A zone behind HTTP: who may ask, what can be asked, and how it is answered."""
