"""How a command ends when it could not do what was asked."""

from __future__ import annotations

from taskharbor.core.errors import TaskHarborError, UsageError


class AppNotLoaded(TaskHarborError):
    """The handlers to run could not be found, or not imported, or not registered."""

    def __init__(self, app: str, reason: str, way_out: str) -> None:
        super().__init__(app, reason, way_out)
        self.app, self.reason, self.way_out = app, reason, way_out

    def __str__(self) -> str:
        return f"cannot load {self.app}: {self.reason}; {self.way_out}"


class NoSuchName(TaskHarborError):
    """Nothing of this kind has this name."""

    def __init__(self, kind: str, name: str, way_out: str) -> None:
        super().__init__(kind, name, way_out)
        self.kind, self.name, self.way_out = kind, name, way_out

    def __str__(self) -> str:
        return f"there is no {self.kind} {self.name!r}; {self.way_out}"


class NotAJobId(UsageError):
    """What was typed is not the id of any job."""

    def __init__(self, text: str, way_out: str) -> None:
        super().__init__(text, way_out)
        self.text, self.way_out = text, way_out

    def __str__(self) -> str:
        return f"{self.text!r} is no job id, which is a UUID; {self.way_out}"


class NotConfirmed(TaskHarborError):
    """A person, or nobody, was asked, and did not say yes. Nothing was changed."""

    def __init__(self, what: str, way_out: str) -> None:
        super().__init__(what, way_out)
        self.what, self.way_out = what, way_out

    def __str__(self) -> str:
        return f"nothing was changed: {self.what} was not confirmed; {self.way_out}"


class CodecNotRecorded(TaskHarborError):
    """The store has recorded another codec meanwhile, or cannot record any yet."""

    def __init__(self, name: str, recorded: str | None) -> None:
        super().__init__(name, recorded)
        self.name, self.recorded = name, recorded

    def __str__(self) -> str:
        why = (
            "this store has no table for it yet; run 'taskharbor migrate up'"
            if self.recorded is None
            else f"another process recorded {self.recorded!r} at the same time; try again"
        )
        return f"the codec {self.name!r} was not recorded: {why}"


class PartlyRefused(TaskHarborError):
    """Some of what was named could not be moved; each was told of by itself."""

    def __init__(self, left: int, asked: int) -> None:
        super().__init__(left, asked)
        self.left, self.asked = left, asked

    def __str__(self) -> str:
        return f"{self.left} of {self.asked} were left alone; the lines above say why"


class NotInstalled(UsageError):
    """A command needs a part that is an extra, and is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(what, extra)
        self.what, self.extra = what, extra

    def __str__(self) -> str:
        return f"{self.what} is not installed; pip install 'taskharbor[{self.extra}]'"


class NoApp(UsageError):
    """Nobody said what to run, and it could not be found."""

    def __init__(self, folder: str, names: tuple[str, ...]) -> None:
        super().__init__(folder, names)
        self.folder, self.names = folder, names

    def __str__(self) -> str:
        return (
            f"no app was named, and none found in {self.folder}; name one, such as tasks.py, or put "
            f"[tool.taskharbor] app = 'tasks.py' into pyproject.toml (looked for {', '.join(self.names)})"
        )
