"""Prompts for `redraft distill`: a sample of what a shard's documents ask, in the tokens seen in training."""

from __future__ import annotations

import json
import random
from pathlib import Path

from redraft.train.jsonl import ANSWER_IDS, PROMPT_IDS
from redraft.train.shards import read_shard


def sample_prompts(shard: Path, out: Path, count: int) -> Path:
    """Write `count` documents of `shard`, drawn without replacement, to the JSON-lines file `out`."""
    documents = read_shard(shard)
    with out.open("w", encoding="utf-8") as file:
        for index in random.Random(1).sample(range(len(documents)), count):
            prompt, answer, _ = documents.pieces(index)
            file.write(json.dumps({PROMPT_IDS: prompt, ANSWER_IDS: answer}) + "\n")
    return out
