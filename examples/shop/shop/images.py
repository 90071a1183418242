"""Pictures of products."""

from shop.jobs import harbor


class PictureBroken(Exception):
    """A picture cannot be read. Another attempt would not change that."""


@harbor.task(queue="images", max_attempts=1)
def thumbnail(picture: str, width: int = 64) -> str:
    if not picture.endswith(".png"):
        raise PictureBroken(f"{picture} is not a PNG file")
    return f"{picture.removesuffix('.png')}-{width}.png"
