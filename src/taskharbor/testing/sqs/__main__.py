"""The endpoint as a process of its own, which a test can kill.

python -m taskharbor.testing.sqs --port 4100 --faults '{"lose": 0.1, "errors": {"ThrottlingException": 0.05}}'
"""

from __future__ import annotations

import argparse
import signal

from taskharbor.testing.sqs.endpoint import Endpoint
from taskharbor.testing.sqs.faults import EndpointFaults


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m taskharbor.testing.sqs", description="An SQS that fails as told.")
    parser.add_argument("--port", type=int, default=0, help="where to listen; 0: where there is room")
    parser.add_argument(
        "--faults", type=EndpointFaults.from_json, default=EndpointFaults(), help="what goes wrong, as JSON"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the dice")
    asked = parser.parse_args()
    # Before the thread starts, which would otherwise take the signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    with Endpoint.start(port=asked.port, faults=asked.faults, seed=asked.seed) as endpoint:
        print(endpoint.url, flush=True)  # noqa: T201  whoever started it waits for this line
        signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    main()
