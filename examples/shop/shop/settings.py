import os

DATABASE_URL = os.environ.get("DATABASE_URL", "sqlite:///shop.db")  # noqa: TID251  settings of the shop, not of TaskHarbor
