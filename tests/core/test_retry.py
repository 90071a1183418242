from __future__ import annotations

from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from taskharbor.core.errors import UsageError
from taskharbor.core.ids import JobId, new_job_id
from taskharbor.core.retry import Exponential, Fixed, Never, RetryPolicy

SECOND: Final = timedelta(seconds=1)
MINUTE: Final = timedelta(minutes=1)
JOB: Final = JobId(UUID(int=7))
BOOM: Final = ValueError("boom")

few = settings(max_examples=100, deadline=None)

attempts = st.integers(1, 40) | st.integers(1, 10**6) | st.integers(1, 10**18)
chances = st.floats(0, 1, exclude_max=True)
waits = st.timedeltas(timedelta.resolution, timedelta(days=36_500))


@st.composite
def exponentials(draw: st.DrawFn, jitters: st.SearchStrategy[float]) -> Exponential:
    base, cap = sorted((draw(waits), draw(waits)))
    factor = draw(st.floats(1, 10) | st.floats(1, 1e308))
    return Exponential(base=base, factor=factor, cap=cap, jitter=draw(jitters))


def seconds(backoff: Exponential, *numbers: int, chance: float = 0) -> list[float]:
    return [backoff.delay(number, chance=chance).total_seconds() for number in numbers]


def test_an_exponential_delay_doubles_from_five_seconds_to_an_hour() -> None:
    doubled = [5 * 2**doublings for doublings in range(10)]

    assert seconds(Exponential(jitter=0), *range(1, 13)) == [*doubled, 3600, 3600]


def test_an_exponential_delay_grows_by_its_factor() -> None:
    backoff = Exponential(base=SECOND, factor=1.5, cap=MINUTE, jitter=0)

    assert seconds(backoff, 1, 2, 3, 4) == [1, 1.5, 2.25, 3.375]


def test_a_factor_of_one_never_reaches_the_cap() -> None:
    backoff = Exponential(base=SECOND, factor=1, cap=MINUTE, jitter=0)

    assert seconds(backoff, 1, 2, 10**6, 10**18) == [1, 1, 1, 1]


def test_a_base_at_the_cap_stays_there() -> None:
    backoff = Exponential(base=MINUTE, cap=MINUTE, jitter=0)

    assert seconds(backoff, 1, 2, 10**6) == [60, 60, 60]


def test_an_attempt_below_the_first_counts_as_the_first() -> None:
    assert seconds(Exponential(jitter=0), -1, 0, 1) == [5, 5, 5]


@pytest.mark.parametrize("attempt", [35, 64, 1_024, 1_100, 10**6, 10**18])
def test_a_huge_attempt_number_waits_for_the_cap(attempt: int) -> None:
    assert seconds(Exponential(jitter=0), attempt) == [3600]


@few
@given(exponentials(st.floats(0, 1, exclude_max=True)), attempts, chances)
@example(Exponential(base=timedelta.resolution, cap=timedelta.max, jitter=0), 67, 0.0)
@example(Exponential(base=timedelta.resolution, jitter=0.9), 1, 0.9)
def test_an_exponential_delay_is_above_zero_and_at_most_the_cap(
    backoff: Exponential, attempt: int, chance: float
) -> None:
    assert timedelta(0) < backoff.delay(attempt, chance=chance) <= backoff.cap


@few
@given(exponentials(st.just(0.0)), attempts, chances)
def test_without_jitter_a_later_attempt_never_waits_less(backoff: Exponential, attempt: int, chance: float) -> None:
    assert backoff.delay(attempt, chance=chance) <= backoff.delay(attempt + 1, chance=chance)


@few
@given(exponentials(st.floats(0, 1, exclude_max=True)), attempts, chances)
def test_jitter_only_shortens_a_delay_and_by_at_most_its_fraction(
    backoff: Exponential, attempt: int, chance: float
) -> None:
    full = backoff.delay(attempt, chance=0)

    delay = backoff.delay(attempt, chance=chance)

    assert full * (1 - backoff.jitter) - timedelta.resolution <= delay <= full


def test_jitter_shortens_a_delay_in_proportion_to_chance() -> None:
    backoff = Exponential(base=timedelta(seconds=100), jitter=0.5)

    assert [backoff.delay(1, chance=chance).total_seconds() for chance in (0, 0.5, 0.98)] == [100, 75, 51]


@few
@given(waits, attempts, chances)
def test_a_fixed_delay_depends_on_nothing(wait: timedelta, attempt: int, chance: float) -> None:
    assert Fixed(wait).delay(attempt, chance=chance) == wait


def test_delays_may_be_numbers_of_seconds() -> None:
    assert Fixed(90) == Fixed(wait=90 * SECOND)
    assert Exponential(base=0.5, cap=60) == Exponential(base=SECOND / 2, cap=MINUTE)
    assert RetryPolicy(backoff=lambda attempt: 1.5 * attempt).delay(JOB, 2, BOOM) == 3 * SECOND


def test_never_gives_up_at_once() -> None:
    assert RetryPolicy(backoff=Never()).delay(JOB, 1, BOOM) is None


def test_a_function_from_the_attempt_to_a_delay_is_a_backoff() -> None:
    policy = RetryPolicy(backoff=lambda attempt: None if attempt == 3 else attempt * SECOND)

    assert [policy.delay(JOB, attempt, BOOM) for attempt in (1, 2, 3)] == [SECOND, 2 * SECOND, None]


def test_the_default_policy_has_growing_delays() -> None:
    assert RetryPolicy().backoff == Exponential()


@few
@given(st.uuids(), st.integers(1, 10**6), st.integers())
def test_the_same_job_and_attempt_have_the_same_delay(job_id: UUID, attempt: int, seed: int) -> None:
    one, other = RetryPolicy(seed=seed), RetryPolicy(seed=seed)

    assert one.delay(JobId(job_id), attempt, BOOM) == other.delay(JobId(job_id), attempt, KeyError())


def test_a_delay_is_the_same_in_every_process_and_release() -> None:
    assert RetryPolicy(seed=1).delay(JOB, 2, BOOM) == timedelta(seconds=8, microseconds=579_246)


def test_jobs_that_failed_together_get_different_delays() -> None:
    policy = RetryPolicy(backoff=Exponential(base=MINUTE, jitter=0.25))

    delays = [policy.delay(new_job_id(), 1, BOOM) for _ in range(1_000)]

    bounded = [delay for delay in delays if delay is not None and 0.75 * MINUTE <= delay <= MINUTE]
    assert len(bounded) == 1_000
    assert len(set(bounded)) > 900
    assert max(bounded) - min(bounded) > 14 * SECOND


def test_another_seed_gives_other_delays() -> None:
    jobs = [new_job_id() for _ in range(10)]

    spread = {seed: [RetryPolicy(seed=seed).delay(job, 1, BOOM) for job in jobs] for seed in (0, 1)}

    assert spread[0] != spread[1]


def test_attempts_of_one_job_get_independent_jitter() -> None:
    policy = RetryPolicy(backoff=Exponential(base=MINUTE, factor=1))

    assert len({policy.delay(JOB, attempt, BOOM) for attempt in range(1, 11)}) > 1


@few
@given(st.uuids(), st.integers(1, 10**6), st.integers())
def test_chance_is_at_least_zero_and_below_one(job_id: UUID, attempt: int, seed: int) -> None:
    seen: list[float] = []

    class Spy:
        def delay(self, attempt: int, *, chance: float) -> timedelta:  # noqa: ARG002  only chance matters
            seen.append(chance)
            return SECOND

    RetryPolicy(backoff=Spy(), seed=seed).delay(JobId(job_id), attempt, BOOM)

    assert 0 <= seen[0] < 1


class Base(Exception):
    pass


class Middle(Base):
    pass


class Leaf(Middle):
    pass


def test_an_error_without_a_rule_uses_the_policys_backoff() -> None:
    policy = RetryPolicy(backoff=Fixed(MINUTE), rules={Base: Fixed(SECOND)}, give_up_on=(OSError,))

    assert policy.delay(JOB, 1, BOOM) == MINUTE


@pytest.mark.parametrize("error", [Base(), Middle(), Leaf()])
def test_a_rule_applies_to_its_class_and_subclasses(error: Base) -> None:
    policy = RetryPolicy(backoff=Fixed(MINUTE), rules={Base: Fixed(SECOND)})

    assert policy.delay(JOB, 1, error) == SECOND


@pytest.mark.parametrize(
    "rules", [{Base: Fixed(MINUTE), Middle: Fixed(SECOND)}, {Middle: Fixed(SECOND), Base: Fixed(MINUTE)}]
)
def test_the_rule_of_the_nearest_class_wins_in_any_order(
    rules: dict[type[BaseException], Fixed],
) -> None:
    policy = RetryPolicy(rules=rules)

    assert policy.delay(JOB, 1, Leaf()) == SECOND
    assert policy.delay(JOB, 1, Base()) == MINUTE


def test_a_rule_may_be_a_function_too() -> None:
    policy = RetryPolicy(rules={Base: lambda attempt: attempt * MINUTE})

    assert policy.delay(JOB, 3, Leaf()) == 3 * MINUTE


def test_give_up_on_applies_to_its_class_and_subclasses() -> None:
    policy = RetryPolicy(give_up_on=(Middle,))

    assert policy.delay(JOB, 1, Leaf()) is None
    assert policy.delay(JOB, 1, Base()) is not None


def test_a_rule_nearer_to_the_error_overrides_giving_up() -> None:
    policy = RetryPolicy(rules={Middle: Fixed(SECOND)}, give_up_on=(Base,))

    assert policy.delay(JOB, 1, Leaf()) == SECOND
    assert policy.delay(JOB, 1, Base()) is None


def test_giving_up_nearer_to_the_error_overrides_a_rule() -> None:
    policy = RetryPolicy(rules={Base: Fixed(SECOND)}, give_up_on=(Middle,))

    assert policy.delay(JOB, 1, Leaf()) is None
    assert policy.delay(JOB, 1, Base()) == SECOND


def test_giving_up_wins_over_a_rule_for_the_same_class() -> None:
    policy = RetryPolicy(rules={Base: Fixed(SECOND)}, give_up_on=(Base,))

    assert policy.delay(JOB, 1, Base()) is None


def test_the_first_of_several_bases_is_the_nearest() -> None:
    class Both(Middle, OSError):
        pass

    policy = RetryPolicy(rules={Base: Fixed(SECOND), OSError: Fixed(MINUTE)})

    assert policy.delay(JOB, 1, Both()) == SECOND


REFUSED: Final[dict[str, tuple[type, dict[str, Any], str]]] = {
    "a base of zero": (Exponential, {"base": timedelta(0)}, "base is datetime.timedelta(0): must be above zero"),
    "a base below zero": (Exponential, {"base": -SECOND}, "base is -1 seconds: must not be negative"),
    "a base over the cap": (
        Exponential,
        {"base": MINUTE, "cap": SECOND},
        f"base is {MINUTE!r}: must be at most cap, which is 0:00:01",
    ),
    "text for a base": (Exponential, {"base": "5s"}, "base is '5s': must be a timedelta or a number of seconds"),
    "a cap without end": (Exponential, {"cap": float("inf")}, "cap is inf: must be a timedelta or a number"),
    "a shrinking factor": (Exponential, {"factor": 0.5}, "factor is 0.5: must be at least 1"),
    "a factor without end": (Exponential, {"factor": float("inf")}, "factor is inf: "),
    "a factor that is no number": (Exponential, {"factor": float("nan")}, "factor is nan: must be at least 1"),
    "a jitter below zero": (Exponential, {"jitter": -0.1}, "jitter is -0.1: must be at least 0 and below 1"),
    "a jitter of all": (Exponential, {"jitter": 1}, "jitter is 1: must be at least 0 and below 1"),
    "a jitter that is no number": (
        Exponential,
        {"jitter": float("nan")},
        "jitter is nan: must be at least 0 and below 1",
    ),
    "a wait of zero": (Fixed, {"wait": timedelta(0)}, "wait is datetime.timedelta(0): must be above zero"),
    "a truth for a wait": (Fixed, {"wait": True}, "wait is True: must be a timedelta or a number of seconds"),
    "a class for a backoff": (RetryPolicy, {"backoff": Never}, "backoff is <class "),
    "seconds for a backoff": (RetryPolicy, {"rules": {ValueError: 5}}, "backoff is 5: "),
    "a class for a tuple of them": (
        RetryPolicy,
        {"give_up_on": ValueError},
        "give_up_on is <class ",
    ),
    "a name for a class": (RetryPolicy, {"rules": {"ValueError": Never()}}, "give_up_on is ('ValueError',): "),
}


@pytest.mark.parametrize(("kind", "arguments", "words"), REFUSED.values(), ids=REFUSED)
def test_a_bad_argument_is_refused_with_its_field_its_value_and_the_rule(
    kind: type, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        kind(**arguments)

    assert str(caught.value).startswith(words)


def test_arguments_exactly_at_their_bounds_are_accepted() -> None:
    Exponential(base=SECOND, cap=SECOND, factor=1, jitter=0)
    Fixed(timedelta.resolution)


@few
@given(st.integers(), st.integers())
def test_different_jobs_have_different_delays_for_some_attempt(one: int, other: int) -> None:
    jobs = [JobId(UUID(int=number % 2**128)) for number in (one, other)]
    assume(jobs[0] != jobs[1])

    spread = [[RetryPolicy().delay(job, attempt, BOOM) for attempt in range(1, 6)] for job in jobs]

    assert spread[0] != spread[1]
