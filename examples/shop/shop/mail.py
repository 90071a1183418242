"""Mail to customers."""

from pathlib import Path

from shop.jobs import harbor
from taskharbor import Context


@harbor.task(queue="mail", max_attempts=3, timeout=30)
def confirm(ctx: Context, order_id: int, email: str) -> str:
    """Write a mail to the folder outbox. The file name makes a second attempt replace the first one's mail."""
    outbox = Path("outbox")
    outbox.mkdir(exist_ok=True)
    (outbox / f"{order_id}.txt").write_text(f"To: {email}\n\nThank you for order {order_id}.\n")
    return f"confirmed in attempt {ctx.attempt}"
