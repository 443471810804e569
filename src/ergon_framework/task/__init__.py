"""The surface of the RFCs, thin: tasks, their mixins, their policies and their exceptions."""
