"""Common parts of rings of copies: some warps fill their places, groups of four empty them."""

from __future__ import annotations

from redraft.kernels.gluon.language import gl, gluon, hopper


@gluon
def new_barriers(STAGES: gl.constexpr, ARRIVALS: gl.constexpr, WARP_GROUPS: gl.constexpr = 2):
    """Two barriers for every place of a ring: full after ARRIVALS, free after all groups."""
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], hopper.mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], hopper.mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        hopper.mbarrier.init(ready.index(i), count=ARRIVALS)
        hopper.mbarrier.init(free.index(i), count=WARP_GROUPS)
    return ready, free


@gluon
def pass_over(ready, free, at, steps, STAGES: gl.constexpr):
    """Release `steps` places, from turn number `at` on, without reading them."""
    for turn in range(at, at + steps):
        hopper.mbarrier.wait(ready.index(turn % STAGES), turn // STAGES & 1)
        hopper.mbarrier.arrive(free.index(turn % STAGES), count=1)


@gluon
def await_place(ready, turn, STAGES: gl.constexpr):
    """Wait until the copies of turn number `turn` have arrived."""
    hopper.mbarrier.wait(ready.index(turn % STAGES), turn // STAGES & 1)
