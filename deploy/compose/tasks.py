"""The example application of compose.yaml. Mount your own folder to /app instead."""

from taskharbor import Harbor

harbor = Harbor()  # its store is that of TASKHARBOR_URL


@harbor.task
def greet(name: str) -> str:
    return f"hello {name}"
