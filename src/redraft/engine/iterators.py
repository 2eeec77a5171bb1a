"""Answers as iterators: any number of them on one engine, in several threads."""

from __future__ import annotations

import logging
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from redraft.engine.answer import Answer
from redraft.engine.handoff_lock import HandoffLock
from redraft.engine.request import Event, Failed, Finished, Request, check_distinct
from redraft.interruption import defer_signal

if TYPE_CHECKING:
    from redraft.engine.engine import Engine

_log = logging.getLogger(__name__)


class _Inbox:
    """What one iterator has yet to return: events of its requests, of which those in `open` have not ended."""

    def __init__(self) -> None:
        self.open: dict[int, None] = {}
        self.events: deque[Event | Failed] = deque()

    def put(self, event: Event | Failed) -> None:
        """Take an event of one of the requests."""
        self.events.append(event)
        if isinstance(event, Finished | Failed):
            del self.open[event.request_id]


class Iterators:
    """The open iterators of `Engine.answer`. One that has no events runs the next forward, which serves all of them.

    The engine holds this object and is passed to each call: with a reference cycle, its pages would not be freed until
    Python's garbage collector runs.
    """

    def __init__(self) -> None:
        self._left: list[_Inbox] = []
        self._working = False
        self._lock = HandoffLock()

    @contextmanager
    def _alone(self) -> Iterator[Callable[[], AbstractContextManager[None]]]:
        """Hold the lock. Ctrl-C waits until it is released, because a thread that it meets at the lock might keep it.

        Yields what `defer_signal` does.
        """
        with defer_signal(signal.SIGINT) as at_once, self._lock:
            yield at_once

    def answer(self, engine: Engine, requests: Sequence[Request]) -> Iterator[Event]:
        """See `Engine.answer`."""
        check_distinct(requests)
        inbox = _Inbox()
        with self._alone():
            answers = [engine.new_answer(request, inbox.put, engine.now()) for request in requests]
        for request in requests:
            engine.rehearse(request)
        return self._events(engine, answers, inbox)

    def _events(self, engine: Engine, answers: list[Answer], inbox: _Inbox) -> Iterator[Event]:
        rest = deque(answers)
        try:
            with self._alone():
                for answer in answers:
                    engine.check_id(answer.request.request_id)
                for answer in answers:
                    inbox.open[answer.request.request_id] = None
                    engine.open(answer)
            while inbox.open or inbox.events:
                with self._alone() as at_once:
                    self._feed(engine, rest, inbox, at_once)
                while inbox.events:
                    event = inbox.events.popleft()
                    if isinstance(event, Failed):
                        raise event.error
                    yield event
        finally:
            with self._alone():
                self._left.append(inbox)
                self._drop_left(engine)

    def _feed(
        self, engine: Engine, rest: deque[Answer], inbox: _Inbox, at_once: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Queue what there is room for, and run a forward unless other iterators' forwards have filled the inbox.

        Ctrl-C ends the forward `at_once` if it serves nobody else.
        """
        self._working = True
        try:
            while rest and not engine.queue_full:
                answer = rest.popleft()
                if answer.request.request_id in inbox.open:  # it may have been cancelled, or its time may be over
                    engine.queue(answer)
            if inbox.open and not inbox.events:  # another thread may have put the last end there
                assert engine.busy, "a request was told no end"  # rather than wait for it for ever
                others = len(engine.open_ids) > len(inbox.open)
                with nullcontext() if others else at_once():
                    self._step(engine, inbox)
        finally:
            self._working = False
            self._drop_left(engine)

    def _step(self, engine: Engine, inbox: _Inbox) -> None:
        """Run a forward. If it fails, all requests that hold a slot end with an error.

        The error is raised unless it has ended only requests of others, so that this iterator can try again.
        """
        try:
            engine.step()
        except BaseException as error:
            failed = engine.fail_running(error)
            mine = any(isinstance(event, Failed) for event in inbox.events)
            if mine or not failed or not isinstance(error, Exception):
                raise
            _log.error("a forward of other iterators' requests failed: %s", error, exc_info=error)

    def _drop_left(self, engine: Engine) -> None:
        """Cancel what iterators left open; put off if garbage collection ended one in the middle of a step."""
        if self._working:
            return
        self._working = True
        try:
            while self._left:
                engine.cancel_all(self._left.pop().open)
        finally:
            self._working = False
