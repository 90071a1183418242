from __future__ import annotations

from django.db import models


class Order(models.Model):  # type: ignore[misc]  # Django has no annotations
    email = models.CharField(max_length=100)

    def __str__(self) -> str:
        return str(self.email)
