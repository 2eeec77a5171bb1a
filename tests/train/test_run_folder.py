"""Two runs in one folder would replace each other's files while these are written."""

import dataclasses
import sys

import pytest
from runs import changed, run
from torch import Tensor

from redraft.errors import SettingError
from redraft.train.batch import Batch
from redraft.train.recipe import Recipe
from redraft.train.trainer import Trainer

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="folders have no locks on Windows")


@pytest.mark.parametrize("begun", [False, True])
def test_a_folder_in_which_a_run_is_going_on_is_refused(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """Before its first checkpoint nothing else would tell; afterwards, the other one would be resumed."""
    recipe = dataclasses.replace(recipe, optimizer=dataclasses.replace(recipe.optimizer, steps=6, warmup=0))
    trainer = Trainer(changed(recipe, checkpoint_every=5 if begun else 0), device="cpu", quiet=True)
    refused = []
    step = Trainer.train_step

    def meanwhile(self: Trainer, *batches: Batch) -> Tensor:
        if self is trainer and self.step == 5:
            with pytest.raises(SettingError, match=r"Another process is writing to '.*run'") as error:
                run(recipe, resume=begun)
            refused.append(error)
        return step(self, *batches)

    monkeypatch.setattr(Trainer, "train_step", meanwhile)
    trainer.run()
    assert len(refused) == 1
    assert run(recipe, resume=True) == []  # nobody is in there any more
