from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from taskharbor.cli.main import LazyGroup
from taskharbor.cli.options import json_option
from taskharbor.cli.render import echo_data, echo_status
from taskharbor.cli.sqs import harbor_with_queues, queue_shapes, queues_of, queues_option, sqs_transport
from taskharbor.core.text import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taskharbor.harbor import Harbor


@click.group(cls=LazyGroup)
def sqs() -> None:
    """Create SQS queues and show their status.

    There is one SQS queue for each job queue, one for dead-letter events, and one for unreadable
    messages.
    """


@sqs.command()
@click.argument("app", required=False)
@queues_option
@json_option
def setup(*, app: str | None, queues: tuple[str, ...] | None, as_json: bool) -> None:
    """Create missing queues, and correct the attributes of existing ones.

    APP is a Harbor, named and found as for 'taskharbor worker': it has the queues of its tasks. It is
    safe to repeat, and removes nothing.
    """
    shapes = queue_shapes(queues_of(app, queues))
    with sqs_transport() as transport:
        transport.ensure_queues(shapes)
        names = {shape.name: transport.name(shape.name) for shape in shapes}
        echo_data({"queues": names}, as_json=as_json, plain="\n".join(names.values()))
        echo_status(f"{plural(len(names), 'queue')} up to date")


@sqs.command()
@click.argument("app", required=False)
@queues_option
@click.option(
    "--url", metavar="URL", help="The store, for ages  [default: the app's store, else TASKHARBOR_URL, else no ages]"
)
@json_option
def status(*, app: str | None, queues: tuple[str, ...] | None, url: str | None, as_json: bool) -> None:
    """Show approximate message counts, and for how many seconds the oldest job has been due.

    APP is a Harbor, named and found as for 'taskharbor worker': it has the queues of its tasks.

    The age comes from the store, since SQS reports ages only to CloudWatch. It counts from the time a
    job is due until a worker claims it, whether or not its message was sent.
    """
    harbor = harbor_with_queues(app, queues)
    ages = _ages(harbor, url)
    with sqs_transport() as transport:
        depths = {name: transport.depth(name) for name in _all_names(queues or harbor.queues)}
        rows = [
            {
                "queue": name,
                "sqs_name": transport.name(name),
                "ready": depth.ready,
                "in_flight": depth.in_flight,
                "delayed": depth.delayed,
                "oldest_age_seconds": ages.get(name),
            }
            for name, depth in depths.items()
        ]
    lines = ["\t".join("-" if value is None else str(value) for value in row.values()) for row in rows]
    echo_data({"queues": rows}, as_json=as_json, plain="\n".join(["\t".join(rows[0]), *lines]))


@sqs.command()
@click.argument("app", required=False)
@queues_option
@click.option("--account", default="*", show_default=True, help="The AWS account id.")
@click.option("--region", default="*", show_default=True, help="The region of the queues.")
@click.option(
    "--role",
    type=click.Choice(["worker", "enqueuer", "setup"]),
    help="Print only the policy of this role, in the format of IAM.",
)
def policy(*, app: str | None, queues: tuple[str, ...] | None, account: str, region: str, role: str | None) -> None:
    """Print least-privilege IAM policies for each role, as JSON, for the queues of APP or of -q."""
    import json

    names = queues_of(app, queues)
    with sqs_transport() as transport:
        roles = _policies(names, lambda queue: f"arn:aws:sqs:{region}:{account}:{transport.name(queue)}")
    click.echo(json.dumps(roles if role is None else roles[role], indent=2))


def _ages(harbor: Harbor, url: str | None) -> dict[str, float | None]:
    from taskharbor.settings import UrlMissing
    from taskharbor.views import queue_view

    if url is not None:
        harbor.use_store(url)
    with harbor:
        try:
            inspector = harbor.driver.inspector
        except UrlMissing:
            return {}
        now = inspector.now()
        return {queue.name: queue_view(queue, now=now)["oldest_age_seconds"] for queue in inspector.queues()}


def _all_names(queues: Sequence[str]) -> list[str]:
    from taskharbor.delivery.transport import DEAD_EVENTS_QUEUE, UNREADABLE_QUEUE

    return [*queues, DEAD_EVENTS_QUEUE, UNREADABLE_QUEUE]


def _policies(queues: Sequence[str], arn: Callable[[str], str]) -> dict[str, Any]:
    from taskharbor.delivery.transport import DEAD_EVENTS_QUEUE

    jobs, events, everything = list(map(arn, queues)), [arn(DEAD_EVENTS_QUEUE)], list(map(arn, _all_names(queues)))
    receive = ("GetQueueUrl", "ReceiveMessage", "DeleteMessage", "ChangeMessageVisibility")
    shape = ("CreateQueue", "GetQueueUrl", "GetQueueAttributes", "SetQueueAttributes")
    return {
        "worker": _policy((receive, jobs), (("GetQueueUrl", "SendMessage"), events)),
        "enqueuer": _policy((("GetQueueUrl", "SendMessage"), jobs)),
        "setup": _policy((shape, everything)),
    }


def _policy(*statements: tuple[Sequence[str], Sequence[str]]) -> dict[str, Any]:
    return {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Action": [f"sqs:{action}" for action in actions], "Resource": list(resources)}
            for actions, resources in statements
        ],
    }
