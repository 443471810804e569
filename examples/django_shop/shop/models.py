"""What the shop keeps."""

from django.db import models


class Order(models.Model):
    """An order, and where it is."""

    name = models.CharField(max_length=100, unique=True)
    state = models.CharField(max_length=100, default="new")

    def __str__(self) -> str:
        return self.name
