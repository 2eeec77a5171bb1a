"""Long tests start first, on different workers."""

import pytest

from spreading import spread


@pytest.mark.parametrize(("workers", "order"), [(1, "ACEGbdfh"), (2, "AEbdCGfh"), (3, "AGCbdEfh"), (4, "AbCdEfGh")])
def test_each_worker_starts_with_its_part_of_the_long_ones(workers: int, order: str) -> None:
    assert "".join(spread(list("AbCdEfGh"), str.isupper, workers)) == order


def test_the_others_keep_their_order() -> None:
    assert spread([5, 3, 40, 1, 2, 60, 4], lambda test: test > 9, 2) == [40, 5, 3, 60, 1, 2, 4]
