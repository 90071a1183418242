from __future__ import annotations

import click

from taskharbor.cli.options import MAX_LIMIT, InvalidValue, json_option, url_option
from taskharbor.cli.store import open_driver


@click.command(name="audit-log")
@click.option("--target", help="Only changes of this job, queue, schedule or key, by its id or name.")
@click.option("--actor", help="Only changes by this user@host or key, as the log has it.")
@click.option("--action", help="Only this action, such as queues.pause.")
@click.option("--before", metavar="ID", help="Continue below this entry.")
@click.option(
    "-n", "--limit", type=click.IntRange(1, MAX_LIMIT), default=50, show_default=True, help="How many to show."
)
@url_option
@json_option
def audit_log(
    *,
    url: str,
    target: str | None,
    actor: str | None,
    action: str | None,
    before: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """Show who changed what, newest first. Entries are kept for 90 days.

    With --json: {"entries": [{"id", "at", "actor", "action", "target", "detail"}], "next": ID or null}
    """
    from uuid import UUID

    from taskharbor.audit_log import read_audit
    from taskharbor.cli.render import echo_data, echo_status, print_table
    from taskharbor.core.ids import Token

    try:
        start = None if before is None else Token(UUID(before))
    except ValueError:
        raise InvalidValue(before or "", "give the id of an entry, as --json shows it") from None
    with open_driver(url) as driver:
        page = read_audit(driver.inspector, limit=limit, before=start, target=target, actor=actor, action=action)
        if as_json:
            echo_data(page.view(), as_json=True, plain="")
            return
        rows = [
            [
                each.at,
                each.actor,
                each.action,
                each.target,
                " ".join(f"{k}={v}" for k, v in sorted(each.detail.items())),
            ]
            for each in page.entries
        ]
        print_table(("at", "actor", "action", "target", "detail"), rows, now=driver.inspector.now(), empty="no entries")
    if page.after is not None:
        echo_status(f"there may be more: --before {page.after}")
