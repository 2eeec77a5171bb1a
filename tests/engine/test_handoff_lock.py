"""The engine's lock: threads take turns at it, and one that has it may enter again."""

import threading
import time

from redraft.engine.handoff_lock import HandoffLock


def test_who_waits_is_next() -> None:
    """A thread that works with it and wants it back at once: a plain lock it had hundreds of times meanwhile."""
    lock, over, entered = HandoffLock(), threading.Event(), list[int]()

    def hold() -> None:
        while not over.is_set():
            with lock:
                entered.append(1)
                sum(range(50_000))

    thread = threading.Thread(target=hold)
    thread.start()
    waited = []
    for _ in range(20):
        time.sleep(0.005)
        before = len(entered)
        with lock:
            waited.append(len(entered) - before)
    over.set()
    thread.join()
    assert sum(waited) <= 2 * len(waited)


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
    thread.join(10)
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
