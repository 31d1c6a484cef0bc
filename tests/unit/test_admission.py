"""Which requests get a thread."""

from __future__ import annotations

import random

import pytest

from commit_coord.protocol.admission import Admission, Place

T, U, V, W = (("shop", "db", name) for name in "tuvw")


def _entered(admission: Admission, times: int, *objects: tuple[str, ...]) -> list[Place]:
    places = [admission.enter(objects) for _ in range(times)]
    admission.start()
    return places


def _run(*places: Place) -> int:
    return sum(place.runs for place in places)


def test_one_table_gets_half_of_the_threads_and_each_further_one_half_of_the_rest() -> None:
    admission = Admission(32)
    assert [16, 8, 4, 2] == [_run(*_entered(admission, 64, table)) for table in (T, U, V, W)]
    assert 1 == _run(*_entered(admission, 1, ("shop", "db", "another")))


def test_tables_that_are_busy_get_as_many_threads_as_stay_free() -> None:
    admission = Admission(30)
    running = _entered(admission, 200, T), _entered(admission, 200, U)
    for _ in range(100):  # whatever ends, its table may start another one only where it has few
        admission.leave(next(place for place in running[0] if place.runs))
        admission.start()
    assert [10, 10] == [_run(*places) for places in running]


def test_one_thread_serves_one_after_the_other_in_their_order() -> None:
    admission = Admission(1)
    first, second, other = (_entered(admission, 1, table)[0] for table in (T, T, U))
    assert [True, False, False] == [first.runs, second.runs, other.runs]
    admission.leave(first)
    assert [second] == admission.start()
    admission.leave(second)
    assert [other] == admission.start()


def test_a_request_for_several_tables_has_none_of_them_while_it_waits_and_is_not_overtaken() -> None:
    admission = Admission(2)
    (first,) = _entered(admission, 1, T)  # one more of T would take the last thread
    (both,) = _entered(admission, 1, T, U)
    (behind,) = _entered(admission, 1, U)
    (free,) = _entered(admission, 1, V)
    assert [True, False, False, True] == [first.runs, both.runs, behind.runs, free.runs]
    admission.leave(first)
    assert [both] == admission.start()


def test_who_gives_up_lets_those_behind_go_on() -> None:
    admission = Admission(2)
    _entered(admission, 1, T)
    (both,), (behind,) = _entered(admission, 1, T, U), _entered(admission, 1, U)
    admission.leave(both)
    assert [behind] == admission.start()


@pytest.mark.parametrize("seed", range(100))
def test_all_run_in_the_order_of_each_table_whatever_comes_and_goes(seed: int) -> None:
    chance = random.Random(seed)
    threads = chance.choice([1, 2, 3, 8])
    admission, order = Admission(threads), dict[Place, int]()
    came, places = list[Place](), list[Place]()
    for _ in range(200):
        if chance.random() < 0.6:
            place = admission.enter(chance.sample([T, U, V], chance.choice([0, 1, 1, 2])))
            came.append(place)
            places.append(place)
        elif running := [place for place in places if place.runs]:
            done = chance.choice(running)
            admission.leave(done)
            places.remove(done)
        for place in admission.start():
            order[place] = len(order)
        assert _run(*places) <= threads
    while places:
        done = next(place for place in places if place.runs)  # somebody always runs
        admission.leave(done)
        places.remove(done)
        for place in admission.start():
            order[place] = len(order)
    assert threads == admission._free
    assert not +admission._running
    for table in (T, U, V):
        numbers = [order[place] for place in came if table in place.objects]
        assert sorted(numbers) == numbers
