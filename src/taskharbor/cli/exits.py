"""What an exit code says."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    OK = 0
    FAILURE = 1
    USAGE = 2
    CANNOT_CONNECT = 3
    NOT_FOUND = 4
    CONFLICT = 5
    REFUSED = 6
    TIMED_OUT_WAITING = 7
    JOB_FAILED = 8
    SCHEMA_OUT_OF_DATE = 9
    APP_IMPORT_FAILED = 10
    PROBLEMS_FOUND = 11
    SLOTS_LOST = 12
    INTERRUPTED = 130  # what shells say of a program that Ctrl-C ended
