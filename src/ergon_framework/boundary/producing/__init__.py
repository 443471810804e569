"""Telling a node what happened: facts and artifacts, each of them once."""
