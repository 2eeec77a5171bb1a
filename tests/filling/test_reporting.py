"""What `on_record` is told of: every hole's drafts, what they would add to the text, and what was chosen."""

import pytest

from redraft.filling import HoleStep
from redraft.filling.hole import Hole
from redraft.filling.reporting import Foremost
from redraft.filling.seams import Seams
from redraft.llm import LLM
from told import Told


def test_every_hole_is_told_of_with_its_drafts_and_then_its_text(llm: LLM) -> None:
    told = Told()
    result = llm.fill("x = retu<|fill|>\r\ny = <|fill|>n z\r\n", max_tokens=3, steps=2, on_record=told.append)
    assert [commit.text for commit in told.commits] == [filling.text for filling in result.fillings]
    assert [commit.token_ids for commit in told.commits] == [filling.token_ids for filling in result.fillings]
    for number, filling in enumerate(result.fillings):
        of_hole = [record for record in told if record.canvas_index == number]
        assert of_hole[-1] is told.commits[number]
        drafts = {"".join(record.pieces) for record in of_hole[:-1] if isinstance(record, HoleStep)}
        assert filling.text.replace("\r\n", "\n") in drafts
        ranks = {record.request_id for record in of_hole[:-1]}
        assert ranks == set(range(len(ranks)))


def test_pieces_are_what_a_draft_adds_to_the_given_text(llm: LLM) -> None:
    encode, seams = llm.tokenizer.encode, Seams.of(llm.tokenizer)
    (whole,) = encode("return")
    retu, n = encode("retu"), encode("n x")[:1]
    first, last = seams.before(retu)[len(retu) - 1], seams.behind(n)
    hole = Hole(tokenizer=llm.tokenizer, behind=(), first=first, last=last)
    middle, smile = encode("r"), encode("\U0001f642")
    assert hole.pieces([whole, *n]) == ("rn", "")
    assert hole.pieces([whole, *middle]) == ("rn", "r"), "it does not yet end as it must"
    assert len(smile) > 1
    assert hole.pieces([whole, *smile, *n]) == ("rn", *[""] * (len(smile) - 1), "\U0001f642", "")
    ids = [whole, *smile, *middle, *n]
    assert "".join(hole.pieces(ids)) == hole.text(ids)
    assert Hole(tokenizer=llm.tokenizer, behind=(), first=None, last=None).pieces([]) == ()


def step(rank: int, number: int, *, hole: int = 0, last: bool = False) -> HoleStep:
    return HoleStep(
        request_id=rank, canvas_index=hole, step=number, canvas=(1,), argmax_canvas=(1,), accepted=(True,),
        entropy=(0.0,), temperature=0.8, converged=last, pieces=("a",),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("records", "taken"),
    [
        # A draft whose length the model chose comes first; then the likeliest of those that are settled together.
        ([step(5, 0), step(5, 1, last=True), step(0, 0), step(1, 0)], [0, 1, 2]),
        # A likelier draft takes over when it comes, and leaves its place when it has settled.
        ([step(1, 0), step(0, 0), step(1, 1), step(0, 1, last=True), step(1, 2)], [0, 1, 3, 4]),
        # It does so at the cap, too, or nothing that is settled later would be seen.
        ([step(0, 0), step(0, 1), step(0, 2), step(3, 0), step(3, 1)], [0, 1, 2, 3, 4]),
        # The next hole begins anew.
        ([step(0, 0), step(2, 0, hole=1), step(0, 0, hole=1)], [0, 1, 2]),
    ],
)
def test_one_draft_is_shown_at_a_time(records: list[HoleStep], taken: list[int]) -> None:
    foremost = Foremost(3)
    assert [at for at, record in enumerate(records) if foremost.takes(record)] == taken
