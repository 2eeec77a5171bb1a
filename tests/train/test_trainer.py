"""Runs: the same losses after an interruption, golden numbers, reports, and what goes wrong said clearly."""

import dataclasses
import errno
import gc
import json
import math
import pickle
import shutil
import signal
import subprocess
import sys
import weakref
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from runs import changed, run

from redraft.config import FULL, SLIDING
from redraft.errors import CheckpointError, SettingError, TrainingError
from redraft.model import Transformer
from redraft.model.folders import read_config, resolve_folder
from redraft.model.initialise import initialise
from redraft.model.weights import load_model, save_model
from redraft.train import sharded_checkpoint, sharding
from redraft.train.batch import Batch
from redraft.train.checkpoint import load_checkpoint, save_checkpoint
from redraft.train.export import export_model
from redraft.train.initial import initial_model
from redraft.train.optimizer import learning_rate
from redraft.train.progress import read_log
from redraft.train.recipe import Recipe
from redraft.train.trainer import Trainer, train

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "train_losses.txt"


def test_an_interrupted_run_goes_on_exactly(recipe: Recipe, tmp_path: Path) -> None:
    recipe = dataclasses.replace(recipe, optimizer=dataclasses.replace(recipe.optimizer, average=0.9))
    whole = run(recipe)
    part = Trainer(changed(recipe, out=str(tmp_path / "part")), device="cpu", quiet=True)
    part.folder.mkdir()
    part.build()
    first = run_steps(part, 7)
    part.save()
    rest = run(part.recipe, resume=True)
    assert first + rest == whole
    rows = read_log(tmp_path / "part" / "log.csv")
    assert [(row["step"], row["steps"]) for row in rows] == [("10", "3"), ("15", "5"), ("20", "5")]
    a, b = (load_checkpoint(tmp_path / name)["weights"] for name in ("run", "part"))
    for kind in ("masters", "average"):
        assert all(torch.equal(a[kind][name], b[kind][name]) for name in a[kind])


KILLED = """
import os, pickle, signal, sys
from redraft.train import checkpoint
from redraft.train.trainer import Trainer

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

trainer = Trainer(pickle.load(open(sys.argv[1], "rb")), device="cpu", quiet=True)
step, sync = trainer.train_step, os.fsync
if sys.argv[2] == "a step":
    trainer.train_step = lambda batch: die() if trainer.step == 7 else step(batch)
else:
    checkpoint.os.fsync = lambda file: die() if trainer.step == 10 else sync(file)
trainer.run()
"""


@pytest.mark.parametrize("moment", ["a step", "a checkpoint"])
def test_a_run_killed_in_the_middle_of_something_goes_on_exactly(recipe: Recipe, tmp_path: Path, moment: str) -> None:
    whole = run(recipe)
    part = changed(recipe, out=str(tmp_path / "part"), checkpoint_every=5)
    (tmp_path / "recipe").write_bytes(pickle.dumps(part))
    command = [sys.executable, "-c", KILLED, str(tmp_path / "recipe"), moment]
    assert subprocess.run(command, timeout=200).returncode == -signal.SIGKILL
    result = train(part, device="cpu", quiet=True, resume=True)
    assert result.losses == whole[5:]
    assert [int(row["step"]) for row in read_log(result.folder / "log.csv")] == [5, 10, 15, 20]
    assert not list(result.folder.glob("*.partial"))


def run_steps(trainer: Trainer, count: int) -> list[float]:
    return [float(trainer.train_step(Batch.from_arrays(trainer.packer.batch(i)).to(trainer.device)))
            for i in range(count)]  # fmt: skip


def test_losses_follow_the_golden_file(recipe: Recipe) -> None:
    """Catches any change of data, noise, model or optimizer; delete the file to write it anew."""
    model = dataclasses.replace(recipe.model, layer_types=(SLIDING, FULL, SLIDING))  # what the numbers are from
    losses = run(dataclasses.replace(recipe, model=model))
    if not GOLDEN.exists():
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text("".join(f"{loss:.6f}\n" for loss in losses))
        pytest.fail(f"{GOLDEN.name} was missing; it has been written, run again.")
    golden = [float(line) for line in GOLDEN.read_text().split()]
    assert losses == pytest.approx(golden, rel=2e-3)
    assert losses[-1] < losses[0]


def test_a_run_leaves_a_model_a_log_and_a_picture(recipe: Recipe) -> None:
    result = train(changed(recipe, evaluate_every=10), device="cpu", quiet=True)
    assert result.finished
    assert result.model_folder is not None
    model = load_model(result.model_folder, device="cpu")
    masters = load_checkpoint(result.folder)["weights"]["masters"]
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.float(), masters[name].bfloat16().float(), rtol=0, atol=0)
    assert json.loads((result.model_folder / "generation_config.json").read_text())["eos_token_id"] == [1]
    rows = read_log(result.folder / "log.csv")
    assert [int(row["step"]) for row in rows] == [5, 10, 15, 20]
    assert [bool(row["heldout_decoder"]) for row in rows] == [False, True, False, True]
    assert float(rows[-1]["loss"]) == pytest.approx(sum(result.losses[-5:]) / 5, rel=1e-4)
    rates = [learning_rate(recipe.optimizer, int(row["step"]) - 1) for row in rows]
    assert [float(row["learning_rate"]) for row in rows] == rates
    assert float(rows[-1]["loss_reverse"]) == pytest.approx(float(rows[-1]["decoder"]), rel=0.05)
    assert (result.folder / "losses.png").stat().st_size > 1000


def test_a_model_keeps_the_files_that_it_came_with(recipe: Recipe, tmp_path: Path) -> None:
    given = Transformer(recipe.model)
    initialise(given, 77)
    save_model(given, tmp_path / "given")
    defaults = '{"max_denoising_steps": 16, "t_max": 0.6, "t_min": 0.1, "eos_token_id": [1, 9]}'
    kept = {"generation_config.json": defaults, "processor_config.json": "{}", "preprocessor_config.json": "{ }"}
    for name, text in kept.items():
        (tmp_path / "given" / name).write_text(text)
    result = train(changed(recipe, init=str(tmp_path / "given")), device="cpu", quiet=True)
    assert {name: (result.model_folder / name).read_text() for name in kept} == kept


@pytest.mark.parametrize(("knew", "taught"), [(False, False), (False, True), (True, False)])
def test_a_model_that_was_taught_spare_holes_says_so(recipe: Recipe, tmp_path: Path, knew: bool, taught: bool) -> None:
    model = Transformer(dataclasses.replace(recipe.model, spare_holes=knew))
    export_model(model, tmp_path, tokenizer="", init="", spare_holes=taught)
    assert json.loads((tmp_path / "config.json").read_text()).get("spare_holes", False) == (knew or taught)
    assert load_model(tmp_path, device="cpu").config.spare_holes == (knew or taught)


def test_a_run_may_begin_with_a_given_model(recipe: Recipe, tmp_path: Path) -> None:
    """The first loss is the given model's, which fresh weights of the same seed do not have."""
    fresh = run(recipe)
    given = Transformer(recipe.model)
    initialise(given, 77)
    save_model(given, tmp_path / "given")
    recipe = changed(recipe, init=str(tmp_path / "given"))
    begun = Trainer(recipe, device="cpu", quiet=True)
    begun.build()
    expected = Trainer(recipe, device="cpu", quiet=True)
    with patch("redraft.train.trainer.initial_model", lambda recipe, device: given):
        expected.build()
    losses = run_steps(begun, 2)
    assert losses == run_steps(expected, 2)
    assert losses[0] != fresh[0]


@pytest.mark.parametrize("shard", [False, True])
def test_a_given_model_gets_the_canvas_that_it_is_trained_on(recipe: Recipe, tmp_path: Path, shard: bool) -> None:
    given = Transformer(dataclasses.replace(recipe.model, canvas_length=32, spare_holes=True))
    initialise(given, 77)
    save_model(given, tmp_path / "given")
    short = dataclasses.replace(recipe, optimizer=dataclasses.replace(recipe.optimizer, steps=1, warmup=0))
    result = train(changed(short, init=str(tmp_path / "given"), shard=shard), device="cpu", quiet=True)
    config = read_config(result.model_folder)
    assert (config.canvas_length, config.spare_holes) == (16, True)


def test_a_given_model_must_have_the_recipes_shape(recipe: Recipe, tmp_path: Path) -> None:
    save_model(Transformer(dataclasses.replace(recipe.model, intermediate_size=40)), tmp_path / "other")
    sentence = r"run\.init: the model in '.*other' has a different shape from the recipe's\."
    with pytest.raises(SettingError, match=sentence):
        initial_model(changed(recipe, init=str(tmp_path / "other")), torch.device("cpu"))


def test_the_time_limit_stops_with_a_checkpoint(recipe: Recipe) -> None:
    result = train(changed(recipe, max_seconds=1e-3), device="cpu", quiet=True)
    assert (result.step, result.finished) == (1, False)
    assert load_checkpoint(result.folder)["step"] == 1


def test_an_interrupt_ends_behind_the_current_step(recipe: Recipe) -> None:
    trainer = Trainer(recipe, device="cpu", quiet=True)
    step = trainer.train_step

    def interrupted(batch):
        if trainer.step == 3:
            signal.raise_signal(signal.SIGINT)
        return step(batch)

    trainer.train_step = interrupted  # type: ignore[method-assign]
    result = trainer.run()
    assert (result.step, result.finished, result.interrupted, len(result.losses)) == (4, False, True, 4)
    assert load_checkpoint(trainer.folder)["step"] == 4


@pytest.mark.parametrize("log_every", [5, 100])
def test_a_nan_loss_names_its_step_and_keeps_the_last_checkpoint(recipe: Recipe, log_every: int) -> None:
    trainer = Trainer(changed(recipe, checkpoint_every=5, log_every=log_every), device="cpu", quiet=True)
    step = trainer.train_step

    def poisoned(batch):
        if trainer.step == 7:
            trainer.masters.masters[0].data[0, 0] = math.nan
        return step(batch)

    trainer.train_step = poisoned  # type: ignore[method-assign]
    with pytest.raises(TrainingError, match=r"loss of step 7 \(counted from 0\) is nan"):
        trainer.run()
    assert load_checkpoint(trainer.folder)["step"] == 5


@pytest.mark.parametrize("checkpoint_every", [0, 1])
def test_an_update_that_leaves_no_numbers_is_neither_kept_nor_handed_out(recipe: Recipe, checkpoint_every: int) -> None:
    recipe = dataclasses.replace(recipe, optimizer=dataclasses.replace(recipe.optimizer, steps=5))
    trainer = Trainer(changed(recipe, checkpoint_every=checkpoint_every), device="cpu", quiet=True)
    step = trainer.train_step

    def ruined(batch):
        loss = step(batch)
        if trainer.step == 5:
            trainer.masters.masters[0].data[0, 0] = math.nan
        return loss

    trainer.train_step = ruined  # type: ignore[method-assign]
    sentence = r"Step 4 \(counted from 0\) left weights that are not finite; they were not saved"
    with pytest.raises(TrainingError, match=sentence):
        trainer.run()
    assert not (trainer.folder / "model").exists()
    if checkpoint_every:
        assert load_checkpoint(trainer.folder)["step"] == 4


def test_a_finished_folder_is_not_overwritten(recipe: Recipe) -> None:
    recipe = dataclasses.replace(recipe, optimizer=dataclasses.replace(recipe.optimizer, steps=5))
    run(recipe)
    with pytest.raises(SettingError, match="already holds a run"):
        run(recipe)
    other = changed(recipe, seed=6)
    with pytest.raises(CheckpointError, match=r"with another seed\.$"):
        run(other, resume=True)


@pytest.mark.parametrize("recorded", [{}, {"spare_holes": True}])
def test_what_a_model_was_taught_does_not_make_another_run(recipe: Recipe, recorded: dict[str, bool]) -> None:
    """`spare_holes` is no part of the shape; checkpoints from before 22 November 2026 do not record it at all."""
    folder = train(changed(recipe, max_seconds=1e-3), device="cpu", quiet=True).folder
    older = load_checkpoint(folder)
    older["model"].pop("spare_holes", None)
    save_checkpoint(folder, {**older, "model": older["model"] | recorded})
    assert len(run(recipe, resume=True)) > 0


@pytest.mark.parametrize("name", ["step", "weights"])
def test_a_checkpoint_that_lacks_something_is_named(recipe: Recipe, name: str) -> None:
    folder = train(changed(recipe, max_seconds=1e-3), device="cpu", quiet=True).folder
    state = load_checkpoint(folder)
    del state[name]
    save_checkpoint(folder, state)
    with pytest.raises(CheckpointError, match=rf"^The checkpoint in '.*' is incomplete: it has no '{name}'\.$"):
        run(recipe, resume=True)


@pytest.mark.parametrize("name", ["file", "file/run", "a\0b", "x" * 300])
def test_a_folder_that_cannot_be_made_is_named_before_training(recipe: Recipe, tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingError, match=r"run\.out: the folder .* cannot be made: "):
        run(changed(recipe, out=str(tmp_path / name)))


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("setting", ["run.init", "data.tokenizer"])
def test_a_run_does_not_write_over_the_model_that_it_begins_with(
    recipe: Recipe, tmp_path: Path, setting: str, resume: bool
) -> None:
    folder = tmp_path / "run" / "model"
    save_model(Transformer(recipe.model), folder)
    shutil.copy(resolve_folder("tiny") / "tokenizer.json", folder)
    (tmp_path / "link").symlink_to(folder)
    if setting == "run.init":
        recipe = changed(recipe, init=str(tmp_path / "link"))
    else:
        recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, tokenizer=str(folder)))
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    trainer = Trainer(changed(recipe, out=str(tmp_path / "run")), device="cpu", quiet=True)
    with pytest.raises(SettingError, match=rf"^{setting} is '.*', the folder that the run writes to; choose another"):
        trainer.run(resume=resume)
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_resuming_nothing_and_damage_are_named(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="nothing to resume"):
        run(recipe, resume=True)
    (tmp_path / "checkpoint.pt").write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match=r"not a readable checkpoint; it is damaged or another kind of file\.$"):
        load_checkpoint(tmp_path)
    torch.save([1], tmp_path / "checkpoint.pt")
    with pytest.raises(CheckpointError, match="not a readable checkpoint"):
        load_checkpoint(tmp_path)
    save_checkpoint(tmp_path, {"step": 3})
    assert load_checkpoint(tmp_path) == {"step": 3}
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_a_disk_that_fills_keeps_the_old_checkpoint(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(changed(recipe, checkpoint_every=5), device="cpu", quiet=True)

    def full(number: int) -> None:
        if trainer.step == 10:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("redraft.train.checkpoint.os.fsync", full)
    with pytest.raises(TrainingError, match=r"could not be written: No space left on device\.$"):
        trainer.run()
    assert load_checkpoint(trainer.folder)["step"] == 5
    assert not list(trainer.folder.glob("*.partial"))


@pytest.mark.parametrize(
    ("written", "what"),
    [
        ("progress.CsvLog.add", r"The log of '.*run'"), ("export.save_model", r"The model '.*model'"),
        ("trainer.draw_losses", r"The plots of '.*run'"),
    ],
)  # fmt: skip
def test_a_disk_that_fills_under_anything_else_ends_the_run_with_a_sentence(
    recipe: Recipe, written: str, what: str
) -> None:
    recipe = dataclasses.replace(recipe, optimizer=dataclasses.replace(recipe.optimizer, steps=5))
    full = patch(f"redraft.train.{written}", side_effect=OSError(errno.ENOSPC, "No space left on device", "a file"))
    said = rf"^{what} could not be written: No space left on device\.$"
    with full, pytest.raises(TrainingError, match=said):
        run(recipe)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limits of file sizes")
def test_a_disk_that_fills_while_torch_writes_is_named(tmp_path: Path) -> None:
    """In a process of its own, whose files may not grow; torch hides the error of the file behind one of its own."""
    save_checkpoint(tmp_path, {"step": 3})
    script = (
        "import resource, signal, sys, torch; from pathlib import Path\n"
        "from redraft.errors import TrainingError; from redraft.train.checkpoint import save_checkpoint\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "for sizes in ([1_000_000], [1_000] * 60):\n"  # the file fails once, or again as torch closes it
        "    try: save_checkpoint(Path(sys.argv[1]), {i: torch.zeros(n) for i, n in enumerate(sizes)})\n"
        "    except TrainingError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=100, check=False
    )
    assert [line.partition("written: ")[2] for line in done.stdout.splitlines()] == ["File too large."] * 2
    assert load_checkpoint(tmp_path) == {"step": 3}
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_a_sharded_checkpoint_outlives_being_killed_between_its_two_names(recipe: Recipe, tmp_path: Path) -> None:
    """What a kill between them leaves is the old one alone; it must stay until the next has the final name."""

    def complete(name: str, step: int) -> None:
        (tmp_path / name).mkdir()
        torch.save({"step": step}, tmp_path / name / sharded_checkpoint.META)

    complete("checkpoint.sharded.old", 5)
    with pytest.raises(SettingError, match="already holds a run"):
        run(changed(recipe, out=str(tmp_path), shard=True))
    complete("checkpoint.sharded.partial", 10)
    names = [tmp_path / f"checkpoint.sharded{end}" for end in ("", ".partial", ".old")]
    with patch.object(Path, "rename", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        sharded_checkpoint._replace(*names)
    assert sharded_checkpoint.load_meta(tmp_path)["step"] == 5
    sharded_checkpoint._replace(*names)
    assert sharded_checkpoint.load_meta(tmp_path)["step"] == 10
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.sharded"]
    complete("checkpoint.sharded.old", 5)  # a kill behind the second name
    assert sharded_checkpoint.load_meta(tmp_path)["step"] == 10


def test_one_number_that_is_not_finite_spoils_sharded_weights(recipe: Recipe) -> None:
    trainer = Trainer(changed(recipe, shard=True), device="cpu", quiet=True)
    with trainer.world.joined(trainer.device, always=True):
        trainer.build()
        assert trainer.masters.finite()
        assert isinstance(trainer.masters, sharding.ShardedWeights)
        weight = trainer.masters.trained_parts["norm.weight"]
        weight.to_local().data[3] = math.inf  # type: ignore[attr-defined]
        assert not trainer.masters.finite()


def test_sharded_weights_decay_and_are_clipped_as_whole_ones_are(recipe: Recipe) -> None:
    """With an eps as large as clipped gradients, so that their size matters."""
    optimizer = dataclasses.replace(recipe.optimizer, warmup=0, weight_decay=5.0, clip=1e-3, eps=1e-3)
    whole, sharded = [
        Trainer(changed(dataclasses.replace(recipe, optimizer=optimizer), shard=shard), device="cpu", quiet=True)
        for shard in (False, True)
    ]
    for trainer in (whole, sharded):
        with trainer.world.joined(trainer.device, always=True):
            trainer.build()
            trainer.train_step(Batch.from_arrays(trainer.packer.batch(0)))
            trained = trainer.masters.trained()
    for name, weight in whole.masters.trained().items():
        torch.testing.assert_close(trained[name], weight, rtol=1e-4, atol=1e-6)


def test_a_resumed_run_lets_go_of_the_checkpoint_that_it_read(recipe: Recipe) -> None:
    run(dataclasses.replace(recipe, optimizer=dataclasses.replace(recipe.optimizer, steps=5)))
    trainer, read = Trainer(recipe, device="cpu", quiet=True), []
    load, step = trainer.checkpoint.load, trainer.train_step

    def watched():
        state = load()
        read.extend(map(weakref.ref, state["weights"]["masters"].values()))
        return state

    def looked(batch):
        gc.collect()
        assert read
        assert not any(tensor() is not None for tensor in read)
        return step(batch)

    trainer.checkpoint.load, trainer.train_step = watched, looked  # type: ignore[method-assign]
    assert trainer.run(resume=True).step == 20


def test_a_disk_that_fills_keeps_the_old_sharded_checkpoint(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(changed(recipe, checkpoint_every=5, shard=True), device="cpu", quiet=True)
    save = sharded_checkpoint.state_dict_saver.save

    def full(state, checkpoint_id):
        if trainer.step == 10:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(state, checkpoint_id=checkpoint_id)

    monkeypatch.setattr(sharded_checkpoint.state_dict_saver, "save", full)
    with pytest.raises(TrainingError, match=r"could not be written: No space left on device\.$"):
        trainer.run()
    assert sharded_checkpoint.load_meta(trainer.folder)["step"] == 5
    assert not list(trainer.folder.glob("*.partial"))
    monkeypatch.setattr(sharded_checkpoint.state_dict_saver, "save", save)
    assert len(run(trainer.recipe, resume=True)) == 15


def test_a_damaged_sharded_checkpoint_is_named(recipe: Recipe) -> None:
    recipe = changed(dataclasses.replace(recipe, optimizer=dataclasses.replace(recipe.optimizer, steps=5)), shard=True)
    run(recipe)
    (part,) = Path(recipe.run.out).glob("checkpoint.sharded/*.distcp")
    part.write_bytes(part.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"checkpoint\.sharded' is not a readable checkpoint: [^\n]+\.$"):
        run(recipe, resume=True)
    for content in (b"damaged", b"", pickle.dumps([1])):
        (part.parent / sharded_checkpoint.META).write_bytes(content)
        with pytest.raises(CheckpointError, match=r"run\.pt' is not a readable checkpoint; it is damaged or another"):
            run(recipe, resume=True)


def test_recomputed_layers_give_the_same_losses(recipe: Recipe, tmp_path: Path) -> None:
    assert run(changed(recipe, recompute=True, out=str(tmp_path / "again"))) == pytest.approx(run(recipe), rel=1e-5)


def test_a_sharded_run_of_all_weights_computes_in_bf16_as_one_on_whole_weights(recipe: Recipe, tmp_path: Path) -> None:
    losses = [run(changed(recipe, dtype="bfloat16", shard=shard, out=str(tmp_path / f"{shard}")))
              for shard in (False, True)]  # fmt: skip
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


def test_the_curve_is_measured_while_training(recipe: Recipe) -> None:
    """On a nano model with the real tokenizer: nothing is solved, but every budget is tried before and at the end."""
    model = dataclasses.replace(recipe.model, vocab_size=16_384)
    tokenizer = str(resolve_folder("tiny"))
    recipe = dataclasses.replace(
        recipe,
        model=model,
        data=dataclasses.replace(recipe.data, tokenizer=tokenizer, rows=1),
        optimizer=dataclasses.replace(recipe.optimizer, steps=3, warmup=1),
        run=dataclasses.replace(recipe.run, curve_every=2, curve_items=1, curve_budgets=(1, 2)),
    )
    result = train(recipe, device="cpu", quiet=True)
    lines = (result.folder / "curve.csv").read_text().splitlines()
    assert [line.split(",")[:2] for line in lines[1:]] == [[step, budget] for step in "023" for budget in "12"]
    assert (result.folder / "curve.png").stat().st_size > 1000
