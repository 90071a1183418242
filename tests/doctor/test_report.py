"""The report of all checks, which is kept for a while."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from taskharbor.doctor.report import MIN_PERIOD_SECONDS, HealthReport
from taskharbor.drivers.connect import connect
from taskharbor.drivers.memory import MemoryDriver

if TYPE_CHECKING:
    from pathlib import Path

WEEK = timedelta(days=7)


def test_the_checks_run_at_most_once_in_thirty_seconds() -> None:
    driver, now = MemoryDriver(), [0.0]
    report = HealthReport(None, lambda: driver.inspector, keep=WEEK, monotonic=lambda: now[0])

    first = report.read()
    now[0] = MIN_PERIOD_SECONDS - 0.1
    cached = report.read()
    now[0] = MIN_PERIOD_SECONDS
    again = report.read()

    assert cached is first
    assert again is not first
    assert first["level"] == "ok"


def test_the_report_of_a_file_includes_the_checks_of_the_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    driver = connect(url)
    try:
        report = HealthReport(url, lambda: driver.inspector, keep=WEEK).read()
    finally:
        driver.close()

    checks = [each["check"] for each in report["findings"]]
    assert "schema" in checks
    assert "queues" in checks
