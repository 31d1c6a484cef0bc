"""Whose turn it is, by a clock that does not move until it is turned."""

from __future__ import annotations

import random

import pytest

from commit_coord.protocol.turns import CommitTurn, Stage, Turns

A, B, C = (frozenset({number}) for number in (1, 2, 3))
NOBODY: frozenset[int] = frozenset()
T, U, V = ("db", "t"), ("db", "u"), ("db", "v")


def _turns(*, reserve_s: float = 2, wait_s: float = 20, most_waiting: int = 16) -> Turns:
    return Turns(reserve_s=reserve_s, wait_s=wait_s, most_waiting=most_waiting)


def _stages(*tickets: CommitTurn) -> list[Stage]:
    return [ticket.stage for ticket in tickets]


def _refused(turns: Turns, writer: frozenset[int], now: float = 0) -> CommitTurn:
    ticket = turns.enter([T], writer, now)
    assert ticket.stage is Stage.RUNNING
    turns.refuse(ticket, now)
    return ticket


def _refused_in(turns: Turns, tables: list[tuple[str, str]], writer: frozenset[int], now: float = 0) -> CommitTurn:
    ticket = turns.enter(tables, writer, now)
    assert ticket.stage is Stage.RUNNING
    turns.refuse(ticket, now)
    return ticket


def test_where_nobody_was_refused_all_run_at_once() -> None:
    turns = _turns()
    tickets = [turns.enter([T], writer, 0) for writer in (A, B, NOBODY)]
    assert [Stage.RUNNING] * 3 == [ticket.stage for ticket in tickets]
    for ticket in tickets:
        turns.leave(ticket, 0)
    assert turns.wakes_at() is None


def test_a_refused_writer_goes_first_when_it_comes_back() -> None:
    turns = _turns()
    assert Stage.ENDED is _refused(turns, A).stage
    other = turns.enter([T], B, 0.1)
    assert [Stage.WAITING] == _stages(other)
    back = turns.enter([T], A, 0.2)
    assert (Stage.RUNNING, Stage.WAITING) == (back.stage, other.stage)
    turns.leave(back, 0.3)
    assert [Stage.RUNNING] == _stages(other)


def test_a_refusal_is_sent_when_no_commit_runs_that_may_move_the_head() -> None:
    turns = _turns()
    first, second = turns.enter([T], A, 0), turns.enter([T], B, 0)
    turns.refuse(second, 0)
    assert [Stage.REFUSED] == _stages(second)
    turns.leave(first, 1)
    assert [Stage.ENDED] == _stages(second)


def test_of_two_refusals_the_second_is_sent_when_the_first_has_landed() -> None:
    turns = _turns()
    first, second = turns.enter([T], A, 0), turns.enter([T], B, 0)
    turns.refuse(second, 0)
    turns.refuse(first, 0)
    assert (Stage.ENDED, Stage.REFUSED) == (first.stage, second.stage)
    back = turns.enter([T], A, 1)
    turns.leave(back, 1.1)
    assert [Stage.ENDED] == _stages(second)
    assert Stage.RUNNING is turns.enter([T], B, 1.2).stage


def test_a_writer_that_does_not_come_back_holds_nobody_up_for_longer_than_its_turn() -> None:
    turns = _turns()
    _refused(turns, A)
    other = turns.enter([T], B, 0.5)
    assert 2 == turns.wakes_at()
    assert not turns.advance(1.9)
    assert [Stage.WAITING] == _stages(other)
    assert turns.advance(2)
    assert [Stage.RUNNING] == _stages(other)


def test_writers_that_do_not_come_back_cost_ever_less() -> None:
    """Whatever comes is refused and never seen again: turns are reserved for fewer and fewer of them."""
    turns, now, reserved_s = _turns(), 0.0, 0.0
    for number in range(1000):
        ticket = turns.enter([T], frozenset({number}), now)
        while ticket.stage is Stage.WAITING:
            wakes = turns.wakes_at()
            assert wakes is not None
            reserved_s += wakes - now
            now = wakes
            turns.advance(now)
        turns.refuse(ticket, now)
        turns.leave(ticket, now)
    assert reserved_s <= 2 * 25


def test_a_turn_that_is_used_makes_up_for_those_that_were_not() -> None:
    turns = _turns()
    _refused(turns, A)
    turns.advance(2)
    _refused(turns, A, 2)  # gets none, behind the one that was not used
    assert Stage.RUNNING is turns.enter([T], C, 2).stage
    turns = _turns()
    _refused(turns, A)
    turns.advance(2)
    _refused(turns, A, 2)
    _refused(turns, B, 2)
    back = turns.enter([T], B, 3)
    turns.leave(back, 3)
    _refused(turns, A, 3)
    assert Stage.WAITING is turns.enter([T], C, 3).stage


def test_who_is_refused_in_its_turn_goes_to_the_end() -> None:
    turns = _turns()
    _refused(turns, A)
    others = [turns.enter([T], writer, 0.1) for writer in (B, C)]
    back = turns.enter([T], A, 0.2)
    turns.refuse(back, 0.3)
    assert (Stage.REFUSED, [Stage.RUNNING] * 2) == (back.stage, [other.stage for other in others])
    for other in others:
        turns.leave(other, 0.4)
    assert [Stage.ENDED] == _stages(back)


def test_a_writer_that_would_not_be_recognized_is_refused_at_once() -> None:
    turns = _turns()
    running = turns.enter([T], A, 0)
    assert Stage.ENDED is _refused(turns, NOBODY).stage
    assert Stage.RUNNING is turns.enter([T], B, 0).stage
    turns.leave(running, 0)


def test_nobody_waits_for_longer_than_the_bound() -> None:
    turns = _turns(wait_s=5)
    stuck = turns.enter([T], A, 0)
    refused = turns.enter([T], B, 0)
    turns.refuse(refused, 1)
    waiting = turns.enter([T], C, 2)
    turns.advance(5)
    assert (Stage.ENDED, Stage.RUNNING) == (refused.stage, waiting.stage)
    turns.leave(stuck, 100)


def test_when_the_line_is_full_more_run_at_once_and_are_answered_at_once() -> None:
    turns = _turns(most_waiting=2)
    _refused(turns, A)
    assert [Stage.WAITING] * 2 == [turns.enter([T], writer, 0).stage for writer in (B, C)]
    beyond = turns.enter([T], frozenset({9}), 0)
    assert [Stage.RUNNING] == _stages(beyond)
    turns.refuse(beyond, 0)
    assert [Stage.ENDED] == _stages(beyond)


@pytest.mark.parametrize("settings", [{"reserve_s": 0.0, "wait_s": 0.0}, {"most_waiting": 0}])
def test_without_reserved_turns_nobody_waits(settings: dict[str, float]) -> None:
    turns = _turns(**settings)  # type: ignore[arg-type]  # each its own type
    running = turns.enter([T], A, 0)
    for writer in (B, C):
        assert Stage.ENDED is _refused(turns, writer).stage
    turns.leave(running, 0)


def test_commits_to_other_tables_wait_for_nobody() -> None:
    turns = _turns()
    _refused(turns, A)
    assert (Stage.WAITING, Stage.RUNNING) == (turns.enter([T], B, 0).stage, turns.enter([U], C, 0).stage)


def test_a_refused_commit_to_several_tables_goes_first_in_all_of_them() -> None:
    turns = _turns()
    assert Stage.ENDED is _refused_in(turns, [T, U], A).stage
    others = [turns.enter([table], B, 0.1) for table in (T, U)]
    assert [Stage.WAITING] * 2 == _stages(*others)
    back = turns.enter([T, U], A, 0.2)
    assert [Stage.RUNNING, Stage.WAITING, Stage.WAITING] == _stages(back, *others)
    turns.leave(back, 0.3)
    assert [Stage.RUNNING] * 2 == _stages(*others)


def test_of_two_refusals_in_the_same_tables_one_is_sent_after_the_other() -> None:
    turns = _turns()
    first, second = turns.enter([T, U], A, 0), turns.enter([U, T], B, 0)
    turns.refuse(second, 0)
    turns.refuse(first, 0)
    assert [Stage.ENDED, Stage.REFUSED] == _stages(first, second)
    turns.leave(turns.enter([T, U], A, 1), 1.1)
    assert [Stage.ENDED] == _stages(second)
    assert Stage.RUNNING is turns.enter([T, U], B, 1.2).stage


def test_a_commit_to_several_tables_waits_in_none_while_it_has_the_turn_in_another() -> None:
    """Else each of the two would have its turn where the other one waits."""
    turns = _turns()
    _refused(turns, A)
    _refused_in(turns, [U], B)
    both = turns.enter([T, U], A, 0.1)  # its turn is in one table alone
    other = turns.enter([T, U], B, 0.1)
    assert [Stage.WAITING] * 2 == _stages(both, other)
    turns.advance(2)
    assert [Stage.RUNNING] * 2 == _stages(both, other)


def test_nobody_overtakes_a_commit_to_several_tables_in_one_of_them() -> None:
    turns = _turns()
    _refused(turns, A)
    waiting = [turns.enter([T, U], B, 0), turns.enter([U], C, 0), turns.enter([V], C, 0)]
    assert [Stage.WAITING, Stage.WAITING, Stage.RUNNING] == _stages(*waiting)
    turns.leave(turns.enter([T], A, 1), 1)
    assert [Stage.RUNNING] * 3 == _stages(*waiting)


@pytest.mark.parametrize("seed", range(200))
def test_whatever_clients_do_nobody_waits_for_ever_and_one_turn_is_used_at_a_time(seed: int) -> None:
    chance, now = random.Random(seed), 0.0
    turns = _turns(most_waiting=chance.choice([0, 1, 4]), wait_s=6)
    tickets: dict[CommitTurn, float] = {}
    for _ in range(400):
        now += chance.choice([0, 0.1, 0.5, 3])
        turns.advance(now)
        running = [ticket for ticket in tickets if ticket.stage is Stage.RUNNING]
        match chance.choice(["enter", "refuse", "leave", "vanish"]):
            case "enter":
                tables = chance.sample([T, U, V], chance.choice([1, 1, 2, 3]))
                tickets[turns.enter(tables, frozenset({chance.randrange(6)}), now)] = now
            case "refuse" if running:
                turns.refuse(chance.choice(running), now)
            case "leave" if running:
                turns.leave(chance.choice(running), now)
            case "vanish" if tickets:
                turns.leave(chance.choice(list(tickets)), now)
        held = [table for reserved in turns._reserved for table in reserved.tables]
        held += [table for ticket in turns._in_turn for table in ticket.tables]
        assert len(set(held)) == len(held), "a table is reserved for one commit"
        wakes = turns.wakes_at()
        for ticket, entered in tickets.items():
            if ticket.stage in (Stage.WAITING, Stage.REFUSED):
                assert now < entered + 6, "the bound holds"
                assert wakes is not None
                assert wakes <= entered + 6
    for ticket in tickets:
        turns.leave(ticket, now)
    turns.advance(now + 10)
    assert turns.wakes_at() is None
    assert not turns._line
    assert not turns._running
