"""Bridges to other task queues, for teams that move to Ergon step by step.

``compat.celery`` runs the tasks of a Celery application as jobs. Nothing here is imported by the
rest of the package, and nothing here is needed once a team has moved.
"""
