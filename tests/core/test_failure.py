from __future__ import annotations

import hashlib
import traceback
from datetime import timedelta
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from taskharbor.core.errors import JobTimedOut
from taskharbor.core.failure import Failure
from taskharbor.core.ids import new_job_id
from taskharbor.core.outcome import Retry
from taskharbor.core.text import MAX_TEXT_CHARS, is_storable

if TYPE_CHECKING:
    from collections.abc import Callable


def caught(call: Callable[[], object]) -> BaseException:
    """Return the error that *call* raised, with its traceback."""
    try:
        call()
    except BaseException as error:  # noqa: BLE001  the error under test
        return error
    raise AssertionError


def reject(reason: object = "no such customer") -> NoReturn:
    raise ValueError(reason)


def reject_elsewhere(reason: object = "no such customer") -> NoReturn:
    raise ValueError(reason)


def test_a_failure_has_type_message_and_traceback() -> None:
    failure = Failure.of(caught(reject))

    assert failure.type == "ValueError"
    assert failure.message == "no such customer"
    assert failure.traceback.startswith("Traceback (most recent call last):")
    assert "in reject\n" in failure.traceback
    assert failure.traceback.endswith("ValueError: no such customer\n")


def test_an_error_without_a_traceback_becomes_a_failure() -> None:
    failure = Failure.of(ValueError("boom"))

    assert failure.traceback == "ValueError: boom\n"


class Trouble(Exception):
    pass


def test_the_type_has_its_module_except_for_builtins() -> None:
    assert Failure.of(KeyError("x")).type == "KeyError"
    assert Failure.of(Trouble()).type == f"{__name__}.Trouble"


def test_the_type_of_a_local_class_is_its_qualified_name() -> None:
    class Local(Exception):
        pass

    name = Failure.of(Local()).type

    assert name.endswith("qualified_name.<locals>.Local")


def test_what_caused_an_error_is_in_its_traceback() -> None:
    def wrap() -> None:
        try:
            reject("the cause")
        except ValueError as error:
            raise Trouble("the effect") from error

    failure = Failure.of(caught(wrap))

    assert failure.message == "the effect"
    assert "ValueError: the cause" in failure.traceback
    assert "direct cause" in failure.traceback


def test_the_errors_of_a_group_are_in_its_traceback() -> None:
    group = ExceptionGroup("two of them", [ValueError("one"), Trouble("other")])

    failure = Failure.of(group)

    assert failure.type == "ExceptionGroup"
    assert "ValueError: one" in failure.traceback
    assert "Trouble: other" in failure.traceback


def test_a_note_is_in_the_traceback() -> None:
    error = ValueError("boom")
    error.add_note("while greeting")

    assert "while greeting" in Failure.of(error).traceback


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __str__


class Wordless(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]  # noqa: PLE0307  the mistake under test


@pytest.mark.parametrize("kind", [Unprintable, Wordless])
def test_an_error_that_cannot_be_printed_is_named_instead(kind: type[Exception]) -> None:
    def fail() -> NoReturn:
        raise kind

    failure = Failure.of(caught(fail))

    assert failure.message == f"(a {__name__}.{kind.__name__} that cannot be printed)"
    assert "in fail\n" in failure.traceback


class Recursive(Exception):
    def __str__(self) -> str:
        return str(self)


class Slippery(str):
    """A str whose methods raise."""

    __slots__ = ()

    def __len__(self) -> int:
        raise RuntimeError

    def replace(self, *_: Any, **__: Any) -> NoReturn:
        raise RuntimeError


class Oily(Exception):
    def __str__(self) -> str:
        return Slippery("slippery")


class Nameless(Exception):
    __module__ = None  # type: ignore[assignment]


class Noted(Exception):
    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        raise RuntimeError


@pytest.mark.parametrize("kind", [Recursive, Oily, Nameless, Noted])
def test_an_error_with_broken_attributes_becomes_a_failure(kind: type[Exception]) -> None:
    failure = Failure.of(kind())

    assert kind.__name__ in failure.type


def test_an_unprintable_error_still_has_a_traceback() -> None:
    def fail() -> NoReturn:
        raise Noted

    error = caught(fail)

    assert "in fail\n" in Failure.of(error).traceback


def test_an_error_that_is_its_own_cause_becomes_a_failure() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one

    assert "ValueError: other" in Failure.of(one).traceback


def test_a_chain_of_errors_longer_than_the_stack_becomes_a_failure() -> None:
    error = ValueError(0)
    for number in range(1, 5_000):
        longer = ValueError(number)
        longer.__cause__, error = error, longer

    failure = Failure.of(error)

    assert failure.message == "4999"
    assert len(failure.traceback) <= MAX_TEXT_CHARS


def test_an_error_from_code_without_source_becomes_a_failure() -> None:
    class Loader:
        def get_source(self, _name: str) -> NoReturn:
            raise RuntimeError

    module = ModuleType("made")
    module.__dict__["__loader__"] = Loader()
    exec(compile("def run(): raise ValueError('boom')", "<made>.py", "exec"), module.__dict__)

    failure = Failure.of(caught(module.run))

    assert failure.message == "boom"


def test_characters_that_no_store_accepts_are_escaped() -> None:
    failure = Failure.of(caught(lambda: reject("a\x00b\ud800c")))

    assert failure.message == "a\\x00b\\ud800c"
    assert is_storable(failure.traceback)


def test_a_huge_message_is_cut_and_the_traceback_keeps_its_end() -> None:
    failure = Failure.of(caught(lambda: reject("x" * 10_000_000 + "the end")))

    assert len(failure.message) == MAX_TEXT_CHARS
    assert len(failure.traceback) == MAX_TEXT_CHARS
    assert failure.traceback.endswith("the end\n")


def test_a_huge_type_name_is_cut() -> None:
    kind = type("X" * 10_000, (Exception,), {})

    assert len(Failure.of(kind()).type) == 200


def fingerprint(call: Callable[[], object]) -> str:
    return Failure.of(caught(call)).fingerprint


def two_lines(*, second: bool) -> None:
    if second:
        raise ValueError("on the second line")
    raise ValueError("on the first line")


def test_errors_of_one_type_from_one_place_have_one_fingerprint() -> None:
    prints = {fingerprint(partial(reject, reason)) for reason in ("one", "other", 7)}

    assert len(prints) == 1


def test_the_fingerprint_ignores_line_numbers() -> None:
    prints = {fingerprint(partial(two_lines, second=second)) for second in (True, False)}

    assert len(prints) == 1


def test_errors_from_different_functions_have_different_fingerprints() -> None:
    assert fingerprint(reject) != fingerprint(reject_elsewhere)


def test_errors_through_different_callers_have_different_fingerprints() -> None:
    def through_another() -> None:
        reject()

    assert fingerprint(reject) != fingerprint(through_another)


def test_errors_of_different_types_have_different_fingerprints() -> None:
    def fail(kind: type[Exception]) -> None:
        raise kind

    assert fingerprint(lambda: fail(ValueError)) != fingerprint(lambda: fail(KeyError))


def test_a_fingerprint_is_short_and_the_same_in_every_process() -> None:
    assert Failure.of(ValueError("boom")).fingerprint == hashlib.sha256(b"ValueError").hexdigest()[:16]


def test_a_recursion_has_one_fingerprint_however_deep_it_went() -> None:
    def down(levels: int) -> None:
        if levels:
            down(levels - 1)
        raise ValueError

    assert fingerprint(lambda: down(3)) == fingerprint(lambda: down(30))


def named(module: str, function: str) -> Callable[[Callable[[], object]], None]:
    """Return a function that calls another one, as if it were defined in *module*."""
    place: dict[str, Any] = {"__name__": module}
    exec(f"def {function}(call):\n    call()", place)
    found: Callable[[Callable[[], object]], None] = place[function]
    return found


def test_frames_of_taskharbor_are_not_in_the_fingerprint() -> None:
    before, after = named("taskharbor.worker.executor", "_call_plain"), named("taskharbor", "run_sync")

    assert fingerprint(lambda: before(reject)) == fingerprint(lambda: after(reject)) == fingerprint(lambda: [reject()])


def test_a_traceback_begins_at_the_first_frame_outside_taskharbor() -> None:
    ours = named("taskharbor.worker.executor", "_call_sync")
    users, inner = caught(lambda: ours(lambda: ours(reject))), caught(lambda: ours(dict[str, str]().popitem))
    for error in (users, inner):  # the frames of this file are not part of a handler's traceback
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_name != "_call_sync":
            frames = frames.tb_next
        error.__traceback__ = frames

    text = Failure.of(users).traceback

    assert text.count("in _call_sync") == 1  # a frame behind the user's own stays
    assert text.index("<lambda>") < text.index("in _call_sync") < text.index("in reject")
    assert "in _call_sync" in Failure.of(inner).traceback  # without a frame of the user, all are kept


def test_frames_of_a_package_with_a_similar_name_are_in_the_fingerprint() -> None:
    plugin, other = named("taskharbor_shop.mail", "send"), named("taskharbor_shop.mail", "deliver")

    assert fingerprint(lambda: plugin(reject)) != fingerprint(lambda: other(reject))


@pytest.mark.parametrize("error", [Retry("later"), JobTimedOut(new_job_id(), timedelta(minutes=1))])
def test_errors_of_taskharbor_are_stored_without_the_name_of_their_module(error: Exception) -> None:
    assert Failure.of(error).type == f"taskharbor.{type(error).__name__}"


def test_the_text_of_a_failure_is_type_and_message() -> None:
    assert str(Failure(type="ValueError", message="boom")) == "ValueError: boom"


def test_the_text_of_a_failure_omits_a_missing_part() -> None:
    assert str(Failure(type="KeyboardInterrupt")) == "KeyboardInterrupt"
    assert str(Failure(message="lease lost")) == "lease lost"


def test_only_a_timeout_of_the_job_counts_as_timeout() -> None:
    assert Failure.of(JobTimedOut(new_job_id(), timedelta(minutes=1))).is_timeout
    assert not Failure.of(TimeoutError()).is_timeout


def test_the_traceback_is_the_one_python_prints() -> None:
    error = caught(reject)

    assert Failure.of(error).traceback == "".join(traceback.format_exception(error))


def test_a_failure_built_directly_is_storable() -> None:
    failure = Failure(type="a\x00", message="b\ud800", traceback="c" * 2 * MAX_TEXT_CHARS)

    assert (failure.type, failure.message, len(failure.traceback)) == ("a\\x00", "b\\ud800", MAX_TEXT_CHARS)
