"""The engine's lock: threads take turns at it, and one that has it may enter again."""

import threading
import time

import pytest

from redraft.engine.handoff_lock import HandoffLock


@pytest.mark.parametrize("attempt", range(20))
def test_who_waits_is_next(monkeypatch: pytest.MonkeyPatch, attempt: int) -> None:
    """A thread that works with it and wants it back at once: a plain lock it had hundreds of times meanwhile."""
    lock, order, has_it, waits = HandoffLock(), list[str](), threading.Event(), threading.Event()
    inner = lock._lock

    class Noted:
        """Says that the other thread, whose turn it is from now on, is about to wait."""

        release = inner.release

        def acquire(self) -> bool:
            if threading.current_thread() is not worker:
                waits.set()
            return inner.acquire()

    def work() -> None:
        with lock:
            has_it.set()
            waits.wait()
        with lock:
            order.append("worker")

    monkeypatch.setattr(lock, "_lock", Noted())
    worker = threading.Thread(target=work)
    worker.start()
    has_it.wait()
    with lock:
        order.append("other")
    worker.join()
    assert order == ["other", "worker"]


def test_who_has_it_enters_again_past_those_who_wait() -> None:
    lock, order = HandoffLock(), list[str]()

    def wait() -> None:
        with lock:
            order.append("other")

    thread = threading.Thread(target=wait)
    with lock:
        thread.start()
        time.sleep(0.05)  # it stands at the turn
        with lock, lock:
            order.append("own")
    thread.join()
    assert order == ["own", "other"]


def test_no_two_threads_have_it_at_a_time() -> None:
    lock, inside, most = HandoffLock(), list[int](), list[int]()

    def enter() -> None:
        for _ in range(50):
            with lock, lock:
                inside.append(1)
                most.append(len(inside))
                time.sleep(1e-4)
                inside.pop()

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
