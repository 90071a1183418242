"""The harbor of the shop. Modules with tasks import it; the worker imports them."""

from shop.settings import DATABASE_URL
from taskharbor import Harbor

harbor = Harbor(DATABASE_URL)
harbor.include("shop.mail", "shop.images")
