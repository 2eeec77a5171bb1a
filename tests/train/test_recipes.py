"""Recipes: those of the repository can be read, and whatever is wrong in one is named."""

import dataclasses
import math
import re
import tomllib
from pathlib import Path

import pytest

import redraft
from redraft.errors import SettingError
from redraft.model.folders import read_config, resolve_folder
from redraft.train.recipe import (
    DataSettings,
    LoraSettings,
    ObjectiveSettings,
    OptimizerSettings,
    Recipe,
    RunSettings,
    SourceSettings,
    read_recipe,
    recipe_from_dict,
)

FOLDER = Path(__file__).parents[2] / "recipes"
SOURCE = Path(redraft.__file__).parent
RECIPES = sorted(FOLDER.rglob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: str(path.relative_to(FOLDER).with_suffix("")))
def test_a_recipe_is_valid(path: Path) -> None:
    """Where a recipe begins with a model that has to be fetched or trained first, the embedded one stands for it."""
    text = path.read_text(encoding="utf-8")
    raw = tomllib.loads(text)
    if "init" in raw["run"]:
        raw["run"]["init"] = "tiny"
    recipe = recipe_from_dict(raw)
    assert text.startswith("# ")
    assert recipe.run.out.startswith("runs/")
    assert all(source.path or source.kind == "reverse" for source in recipe.data.sources)


def test_every_version_of_the_embedded_model_begins_with_the_one_before() -> None:
    runs = [tomllib.loads(path.read_text())["run"] for path in sorted((FOLDER / "tiny").iterdir())]
    assert "init" not in runs[0]
    assert [run["init"] for run in runs[1:]] == [run["out"] + "/model" for run in runs[:-1]]


def test_what_recipes_read_from_data_is_what_builders_and_their_own_first_lines_write() -> None:
    builders = "".join(path.read_text() for path in (SOURCE / "train" / "build").glob("*.py"))
    for path in RECIPES:
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r'^path = "\.data/(.*)"', text, re.MULTILINE):
            start = re.split(r"\*|(?<=-)\d", name)[0]  # of several files with numbers, or of one
            assert f'"{start}' in builders or re.search(rf"^# .* \.data/{name} ", text, re.MULTILINE), (path, name)


def test_there_is_one_for_every_use() -> None:
    names = {path.stem for path in RECIPES}
    chat, rest = {"chat_lora", "chat_sft", "tool_calling"}, {"code_infill", "sudoku", "sudoku_lora", "lora_26b"}
    assert names >= chat | rest | {"distill"}


def test_a_dtype_has_its_short_name_too(recipe: Recipe) -> None:
    for short, name in (("bf16", "bfloat16"), ("fp32", "float32"), ("bfloat16", "bfloat16")):
        assert dataclasses.replace(recipe.run, dtype=short).dtype == name  # type: ignore[arg-type]


WRONG = [
    ("optimizer", "learning_rat", 1.0, "recipe.optimizer: unknown setting 'learning_rat'"),
    (None, "name", "mine", "recipe: unknown setting 'name'; known settings are model, data, "),
    ("optimizer", "epochs", 3, "recipe.optimizer: there is no setting 'epochs', because documents are drawn at random"),
    ("run", "num_train_epochs", 3, "give optimizer.steps. `redraft train --check` says how many steps an epoch takes"),
    ("optimizer", "learning_rate", "fast", "recipe.optimizer.learning_rate is 'fast'; it must be of type float"),
    ("optimizer", "learning_rate", -1.0, "optimizer.learning_rate is -1.0; it must be above 0"),
    ("optimizer", "eps", 0.0, "optimizer.eps is 0.0; it must be above 0"),
    ("optimizer", "schedule", "linear", "optimizer.schedule is 'linear'; it must be one of cosine, wsd"),
    ("optimizer", "schedule", 5, "optimizer.schedule is 5; it must be one of cosine, wsd"),
    ("objective", "self_conditioning", 1.5, "objective.self_conditioning is 1.5; it must be between 0 and 1"),
    ("optimizer", "weight_decay", math.inf, "optimizer.weight_decay is inf; it must be finite"),
    ("objective", "rollout_bound", [0.1, math.inf], "objective.rollout_bound is (0.1, inf); it must be finite"),
    ("objective", "rollout", 0.5, "recipe.objective: unknown setting 'rollout'"),
    ("objective", "rollout_bound", [0.1, 1.0], "objective.rollout_bound has no effect without rollout in a source"),
    (
        "objective",
        "rollout_bound",
        [2.0, 0.1],
        "objective.rollout_bound is (2.0, 0.1); it must be two numbers above 0, the smaller one first",
    ),
    ("run", "dtype", "float16", "run.dtype is 'float16'"),
    ("run", "dtype", [1], "run.dtype is [1]"),
    ("model", "layer_types", [["full_attention"]], "layer_types must name 'sliding_attention' or 'full_attention'"),
    ("run", "compile", 1, "recipe.run.compile is 1; it must be of type bool"),
    ("data", "rows", 0, "data.rows is 0; it must be at least 1"),
    ("data", "sources", [], "at least one"),
    ("data", "rows", 9 * 10**18, "data: a batch would have 1,728,000,000,000,000,000,000 tokens; give fewer"),
    ("data", "canvases", 10**9, "data: a batch would have 256,000,001,536 tokens; give fewer"),
    ("data", "workers", -1, "data.workers is -1; it must be at least 0"),
    ("optimizer", "decay_share", 0.0, "optimizer.decay_share is 0.0; it must be above 0 and at most 1"),
    ("optimizer", "average", 1.0, "optimizer.average is 1.0; it must be at least 0 and below 1"),
    ("optimizer", "betas", 0.9, "recipe.optimizer.betas is 0.9; it must be a list"),
    ("optimizer", "steps", True, "recipe.optimizer.steps is True; it must be of type int"),
    ("run", "curve_task", "poems", "run.curve_task is 'poems'; it must be one of sudoku, "),
    ("run", "curve_budgets", [2, 1], "run.curve_budgets is (2, 1); it must be increasing numbers of at least 1"),
    ("run", "curve_every", 5, "run.curve_every asks the model questions, so it needs data.tokenizer"),
    ("lora", "alpha", 1.0, "recipe.lora: rank is missing"),
    ("lora", "rank", 2, "run.init is missing"),
    ("model", "head_dim", 7, "must be even"),
    ("model", "head_dim", 0, "sets head_dim to 0; it must be a whole number from 1 to"),
    ("model", "canvas_length", 0, "sets canvas_length to 0"),
    ("model", "canvas_length", -4, "sets canvas_length to -4"),
    ("model", "num_key_value_heads", 0, "[model] holds an invalid number"),
    ("model", "sliding_window", 0, "sets sliding_window to 0"),
    ("model", "rms_norm_eps", -1.0, "sets rms_norm_eps to -1.0; it must be a number above 0"),
    ("model", "eos_token_id", [], "eos_token_id"),
    ("model", "eos_token_id", [99], "eos_token_id"),
    ("model", "bos_token_id", 64, "model.bos_token_id is 64; it must be a token in the vocabulary"),
    ("model", "extra", 3, "recipe.model.extra is 3; it must be a table"),
    ("optimizer", "learning_rate", 1e38, "optimizer.learning_rate is 1e+38; it must be above 0 and at most 1000"),
    ("optimizer", "learning_rate", 10**400, "it must be a number of at most 64 bits"),
    ("data", "rows", 10**30, "it must be a number of at most 64 bits"),
    ("model", "max_position_embeddings", 50, "take 112 positions together; the model has 50"),
]


@pytest.mark.parametrize(("table", "key", "value", "message"), WRONG)
def test_wrong_settings_are_named(table: str | None, key: str, value: object, message: str) -> None:
    raw = tomllib.loads((FOLDER / "nano.toml").read_text())
    (raw if table is None else raw.setdefault(table, {}))[key] = value
    with pytest.raises(SettingError) as caught:
        recipe_from_dict(raw)
    assert message in str(caught.value)


@pytest.mark.parametrize(("change", "message"), [
    ({"infill": 0.5}, "infill has no effect for kind 'reverse'"),
    ({"path": "x"}, "path is 'x'"),
    ({"kind": "poem"}, "kind is 'poem'"),
    ({"name": "kept"}, "source.name is 'kept'; it must be a name other than t0.0, "),
    ({"name": "t0.1"}, "source.name is 't0.1'; it must be a name other than t0.0, "),
    ({"kind": "text", "path": "x"}, "data.tokenizer is missing"),
    ({"share": 0.0}, "share is 0.0"),
    ({"share": math.inf}, "source reverse: share is inf; it must be finite"),
    ({"max_canvases": 2}, "max_canvases has no effect without JSON lines"),
    ({"kind": "text", "path": "x", "line_holes": 0.5}, "line_holes has no effect without infill"),
    ({"kind": "text", "path": "x", "spare_holes": 0.5}, "spare_holes has no effect without infill"),
    ({"kind": "chat", "path": "x", "infill": 0.5, "spare_holes": 0.5}, "spare_holes has no effect without JSON lines"),
    ({"rollout": 1.5}, "source reverse: rollout is 1.5; it must be between 0 and 1"),
    ({"name": ""}, "source.name is ''; it must be a name"),
])  # fmt: skip
def test_wrong_sources_are_named(change: dict[str, object], message: str) -> None:
    raw = tomllib.loads((FOLDER / "nano.toml").read_text())
    del raw["data"]["sources"][0]["prompt_weight"]
    raw["data"]["sources"][0] |= change
    with pytest.raises(SettingError) as caught:
        recipe_from_dict(raw)
    assert message in str(caught.value)


def test_shares_whose_sum_is_infinite_are_named() -> None:
    raw = tomllib.loads((FOLDER / "nano.toml").read_text())
    source = raw["data"]["sources"][0] | {"share": 1e308}
    raw["data"]["sources"] = [source, source | {"name": "other"}]
    with pytest.raises(
        SettingError, match=r"data.sources is \[1e\+308, 1e\+308\]; it must be shares with a finite sum"
    ):
        recipe_from_dict(raw)


def test_unreadable_recipes_are_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="There is no recipe"):
        read_recipe(tmp_path / "none.toml")
    with pytest.raises(SettingError, match="cannot be read: Is a directory"):
        read_recipe(tmp_path)
    for text in ("[model\n", "name = " + "1" * 5000, "name = " + "[" * 100_000):
        (tmp_path / "bad.toml").write_text(text)
        with pytest.raises(SettingError, match="not valid TOML"):
            read_recipe(tmp_path / "bad.toml")


def test_a_recipe_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "nano.toml"
    path.write_text("\ufeff" + (FOLDER / "nano.toml").read_text(), encoding="utf-8")
    assert read_recipe(path) == read_recipe(FOLDER / "nano.toml")


def test_settings_that_exclude_each_other(recipe: Recipe) -> None:
    with pytest.raises(SettingError, match=r"run\.curve_every cannot be combined with run\.shard"):
        dataclasses.replace(recipe.run, curve_every=2, shard=True)
    optimizer = dataclasses.replace(recipe.optimizer, average=0.9)
    run = dataclasses.replace(recipe.run, shard=True)
    with pytest.raises(SettingError, match=r"optimizer\.average cannot be combined with run\.shard"):
        dataclasses.replace(recipe, optimizer=optimizer, run=run)


def test_rollouts_need_a_first_pass() -> None:
    raw = tomllib.loads((FOLDER / "nano.toml").read_text())
    raw["data"]["sources"][0]["rollout"] = 0.5
    assert recipe_from_dict(raw).data.rolls_out
    raw.setdefault("objective", {})["self_conditioning"] = 0.0
    with pytest.raises(SettingError, match="source reverse: rollout has no effect without objective"):
        recipe_from_dict(raw)


@pytest.mark.parametrize(("table", "given", "message"), [
    ("objective", {"self_conditioning": 0.0, "temperature_low": 0.5}, "temperature_low has no effect without self"),
    ("objective", {"mask_token": 5}, "objective.mask_token has no effect with corruption 'uniform'; remove it."),
    ("objective", {"loss": "loo", "weight_clip": 5.0}, "objective.weight_clip has no effect with loss 'loo'"),
    ("objective", {"encoder_weight": 0.0, "encoder_share": 0.5}, "encoder_share has no effect without encoder_weight"),
    ("run", {"evaluate_every": 0, "evaluate_batches": 2}, "run.evaluate_batches has no effect without evaluate_every"),
    ("run", {"capture": False}, "run.capture has no effect without compile; remove it."),
    ("run", {"curve_task": "tools"}, "run.curve_task has no effect without curve_every; remove it."),
    ("run", {"curve_items": 4}, "run.curve_items has no effect without curve_every"),
    ("run", {"curve_budgets": [1, 2]}, "run.curve_budgets has no effect without curve_every"),
    ("objective", {"encoder_weight": 0.0}, "source reverse: prompt_weight has no effect without objective.encoder"),
    ("optimizer", {"schedule": "cosine", "decay_share": 0.5}, "decay_share has no effect with schedule 'cosine'"),
])  # fmt: skip
def test_settings_without_effect_are_named(table: str, given: dict[str, object], message: str) -> None:
    raw = tomllib.loads((FOLDER / "nano.toml").read_text())
    raw[table] = raw.get(table, {}) | given
    with pytest.raises(SettingError) as caught:
        recipe_from_dict(raw)
    assert message in str(caught.value)


@pytest.mark.parametrize("loss", ["loo", "reweighted"])
def test_rollouts_have_no_noise_level_that_a_loss_could_depend_on(loss: str) -> None:
    raw = tomllib.loads((FOLDER / "nano.toml").read_text())
    raw["data"]["sources"][0]["rollout"] = 0.5
    raw["objective"] = raw.get("objective", {}) | {"loss": loss}
    with pytest.raises(SettingError, match=f"source reverse: rollout cannot be combined with objective.loss '{loss}'"):
        recipe_from_dict(raw)


def test_where_the_model_should_come_from_is_named() -> None:
    raw = tomllib.loads((FOLDER / "nano.toml").read_text())
    del raw["model"]
    with pytest.raises(SettingError, match=r"model is missing; give the table \[model\], or a model folder as"):
        recipe_from_dict(raw)
    for folder, words in (("no folder", "'no folder' is neither"), ("nobody/none", "nobody/none is neither")):
        raw["run"]["init"] = folder
        with pytest.raises(SettingError, match=rf"^run\.init: {words}"):
            recipe_from_dict(raw)


def test_a_recipe_takes_model_and_tokenizer_from_where_it_begins() -> None:
    raw = tomllib.loads((FOLDER / "nano.toml").read_text())
    raw["run"]["init"] = "tiny"
    given = raw.pop("model")
    begun = recipe_from_dict(raw)
    assert begun.model == read_config(resolve_folder("tiny"))
    assert begun.data.tokenizer == str(resolve_folder("tiny"))
    assert recipe_from_dict({**raw, "model": given}).model.vocab_size == given["vocab_size"]


def test_a_tokenizer_is_named_as_a_model_is(tmp_path: Path) -> None:
    raw = tomllib.loads((FOLDER / "nano.toml").read_text())
    raw["data"]["tokenizer"] = "tiny"
    assert recipe_from_dict(raw).data.tokenizer == str(resolve_folder("tiny"))
    (tmp_path / "odd.gguf").write_bytes(b"GGML")
    for named, words in ((str(tmp_path / "odd.gguf"), ".*is not a GGUF file"), ("nowhere", "'nowhere' is neither")):
        raw["data"]["tokenizer"] = named
        with pytest.raises(SettingError, match=rf"^data\.tokenizer: {words}"):
            recipe_from_dict(raw)


@pytest.mark.parametrize(("title", "table"), [
    ("data", DataSettings), ("[data.sources]", SourceSettings), ("objective", ObjectiveSettings),
    ("lora", LoraSettings), ("optimizer", OptimizerSettings), ("run", RunSettings),
])  # fmt: skip
def test_the_documents_list_every_setting_and_its_default(title: str, table: type) -> None:
    text = (FOLDER.parent / "docs" / "recipes.md").read_text(encoding="utf-8")
    listed = text.split(f"| `[{title}]` | default | |\n|---|---|---|\n")[1].split("\n\n")[0]
    rows = [[cell.strip().strip("`") for cell in line.split("|")[1:3]] for line in listed.splitlines()]
    assert [name for name, _ in rows] == [field.name for field in dataclasses.fields(table)]
    for (name, default), field in zip(rows, dataclasses.fields(table), strict=True):
        if field.default is dataclasses.MISSING:
            assert not default, name
        else:
            found = tomllib.loads(f"x = {default}")["x"]
            assert (tuple(found) if isinstance(found, list) else found) == field.default, name
