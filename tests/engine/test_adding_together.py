"""Requests that are queued together, as the answers to one request of the server are: all of them or none."""

import dataclasses

import pytest
from asking import Make, add, ask

from redraft.cache.pages import PAGE
from redraft.engine.request import Event, Failed, Finished
from redraft.errors import PromptError, QueueFullError, SettingError


def test_several_that_come_together_are_taken_while_nobody_waits_even_if_they_must_all_wait(make: Make) -> None:
    """They were refused for ever, with advice to try again: one may wait, and pages are there for only one."""
    engine = make(memory_gb=0.003, slots=3, max_waiting=1)
    length = engine.stats().full_pages * PAGE - 100
    told = list[Event | Failed]()
    engine.add_together([ask(i, length) for i in range(4)], [told.append] * 4)
    engine.step()
    assert (engine.stats().running, engine.stats().waiting) == (1, 3)
    with pytest.raises(QueueFullError, match="3 requests are already waiting; the queue holds at most 1"):
        add(engine, ask(4))
    with pytest.raises(SettingError, match="These are 5 answers; there is room for at most 4, of which 1 may wait"):
        engine.add_together([ask(i) for i in range(4, 9)], [told.append] * 5)
    while engine.busy:
        engine.step()
    assert [event.request_id for event in told if isinstance(event, Finished)] == [0, 1, 2, 3]
    assert not engine.busy
    assert engine.stats().full_pages_used == 0


def test_of_several_that_come_together_none_is_taken_if_one_is_wrong(make: Make) -> None:
    engine = make()
    for wrong, error, sentence in (
        (dataclasses.replace(ask(2), prompt=()), PromptError, "prompt is empty"),
        (ask(1), SettingError, "Two requests have the same request_id"),
    ):
        with pytest.raises(error, match=sentence):
            engine.add_together([ask(1), wrong], [pytest.fail, pytest.fail])
    assert not engine.busy
