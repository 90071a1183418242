"""Models without tables of their own: they give the admin its pages, and their permissions."""

from __future__ import annotations

from django.db import models


class HarborJob(models.Model):  # type: ignore[misc]  # Django has no annotations
    """A job, for the admin. Its rows are read through the driver, not with the ORM."""

    id = models.UUIDField(primary_key=True)

    class Meta:
        managed = False
        verbose_name = "job"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return str(self.id)
