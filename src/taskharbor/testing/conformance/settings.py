"""Settings of the store: recorded once, changed only by an operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taskharbor.testing.conformance.subject import Subject


def test_the_first_value_of_a_setting_is_recorded_and_returned_to_all(subject: Subject) -> None:
    first = subject.driver.remember("codec", "json")
    second = subject.driver.remember("codec", "zip")

    assert (first, second) == ("json", "json")
    assert subject.driver.inspector.settings() == {"codec": "json"}


def test_settings_are_independent_of_each_other(subject: Subject) -> None:
    answers = [subject.driver.remember(name, name.upper()) for name in ("zone", "codec")]

    assert answers == ["ZONE", "CODEC"]
    assert [*subject.driver.inspector.settings().items()] == [("codec", "CODEC"), ("zone", "ZONE")]


def test_a_setting_is_changed_from_the_named_value_only(subject: Subject) -> None:
    subject.driver.remember("codec", "json")
    subject.driver.remember("other", "json")

    refused = subject.driver.control.change_setting("codec", "zip", instead_of="aes")
    changed = subject.driver.control.change_setting("codec", "zip", instead_of="json")

    assert (refused, changed) == (False, True)
    assert subject.driver.inspector.settings() == {"codec": "zip", "other": "json"}


def test_a_setting_without_a_value_is_not_changed(subject: Subject) -> None:
    answer = subject.driver.control.change_setting("codec", "zip", instead_of="json")

    assert (answer, subject.driver.inspector.settings()) == (False, {})


def test_a_refused_change_leaves_the_setting_as_it_is(subject: Subject) -> None:
    subject.driver.remember("codec", "json")

    subject.driver.control.change_setting("codec", "zip", instead_of="aes")

    assert subject.driver.inspector.settings() == {"codec": "json"}
