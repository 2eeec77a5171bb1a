"""Answers as iterators: any number of them on one engine, in several threads."""

from __future__ import annotations

import logging
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from redraft.engine.answer import Answer
from redraft.engine.handoff_lock import HandoffLock
from redraft.engine.request import Event, Failed, Finished, Request
from redraft.errors import EngineError, SettingError
from redraft.model.interruption import defer_signal

if TYPE_CHECKING:
    from redraft.engine.engine import Engine

_Inbox = deque[Event | EngineError]

_log = logging.getLogger(__name__)


class Iterators:
    """The open iterators of `Engine.answer`. One that has no events runs the next forward, which serves all of them.

    The engine holds this object and is passed to each call: with a reference cycle, its pages would not be freed until
    Python's garbage collector runs.
    """

    def __init__(self) -> None:
        self._inboxes: dict[int, _Inbox] = {}
        self._left: list[int] = []
        self._working = False
        self._lock = HandoffLock()

    def __contains__(self, request_id: int) -> bool:
        """Whether an iterator waits for this request's events."""
        return request_id in self._inboxes

    def take(self, event: Event | Failed) -> bool:
        """Pass an event to its iterator; False if none is waiting for it."""
        if (inbox := self._inboxes.get(event.request_id)) is None:
            return False
        inbox.append(event.error if isinstance(event, Failed) else event)
        if isinstance(event, Finished | Failed):
            del self._inboxes[event.request_id]
        return True

    def answer(self, engine: Engine, requests: Sequence[Request]) -> Iterator[Event]:
        """See `Engine.answer`."""
        if len({request.request_id for request in requests}) < len(requests):
            raise SettingError("Two requests have the same request_id.")
        with self._lock:
            answers = [engine.prepared(request, engine.now()) for request in requests]
        for request in requests:
            engine.rehearse(request)
        return self._events(engine, answers)

    def _events(self, engine: Engine, answers: list[Answer]) -> Iterator[Event]:
        inbox: _Inbox = deque()
        mine = {answer.request.request_id for answer in answers}
        rest, left = deque(answers), len(answers)
        with self._lock:
            for request_id in mine:
                engine.check_id(request_id)
            self._inboxes |= dict.fromkeys(mine, inbox)
        try:
            while left:
                with self._lock:
                    self._feed(engine, rest, inbox)
                while inbox:
                    event = inbox.popleft()
                    if isinstance(event, EngineError):
                        raise event
                    left -= isinstance(event, Finished)
                    yield event
        finally:
            with self._lock:
                self._left += [request_id for request_id in mine if self._inboxes.get(request_id) is inbox]
                self._drop_left(engine)

    def _feed(self, engine: Engine, rest: deque[Answer], inbox: _Inbox) -> None:
        """Queue what there is room for, and run a forward unless other iterators' forwards have filled the inbox."""
        self._working = True
        try:
            while rest and not engine.queue_full:
                engine.queue(rest.popleft())
            if not inbox:
                with self._defer_sigint(inbox):
                    self._forward(engine, inbox)
        finally:
            self._working = False
            self._drop_left(engine)

    def _defer_sigint(self, inbox: _Inbox) -> AbstractContextManager[None]:
        """Ctrl-C ends the iterator that it interrupts; a forward that serves others as well is finished first."""
        others = any(one is not inbox for one in self._inboxes.values())
        return defer_signal(signal.SIGINT) if others else nullcontext()

    def _forward(self, engine: Engine, inbox: _Inbox) -> None:
        """Run a forward. If it fails, end the requests that hold a slot and tell their iterators why.

        The error is raised unless it has ended only requests of others, so that this iterator can try again.
        """
        try:
            engine.forward()
        except BaseException as error:
            running = engine.running_ids
            told = [self._inboxes[request_id] for request_id in running if request_id in self._inboxes]
            for one in told:
                one.append(EngineError(f"A forward failed with {error!r}."))
            engine.cancel_all(running)
            if not running or any(one is inbox for one in told) or not isinstance(error, Exception):
                raise
            _log.error("a forward of other iterators' requests failed: %s", error, exc_info=error)

    def _drop_left(self, engine: Engine) -> None:
        """Cancel what iterators left open; put off if garbage collection ended one in the middle of a step."""
        if self._working:
            return
        self._working = True
        try:
            while self._left:
                self._drop(engine, [self._left.pop() for _ in range(len(self._left))])
        finally:
            self._working = False

    def _drop(self, engine: Engine, request_ids: Sequence[int]) -> None:
        """Cancel requests that nobody waits for; even if that fails, their ids can be used again."""
        try:
            engine.cancel_all(request_ids)
        finally:
            for request_id in request_ids:
                self._inboxes.pop(request_id, None)
