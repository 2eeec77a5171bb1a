"""What rings of copies have in common: one group of warps fills their places, two empty them."""

from __future__ import annotations

from redraft.kernels.gluon.language import gl, gluon, hopper


@gluon
def new_barriers(STAGES: gl.constexpr, ARRIVALS: gl.constexpr):
    """Two barriers for every place of a ring: full after ARRIVALS, free after both groups."""
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], hopper.mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], hopper.mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        hopper.mbarrier.init(ready.index(i), count=ARRIVALS)
        hopper.mbarrier.init(free.index(i), count=2)
    return ready, free
