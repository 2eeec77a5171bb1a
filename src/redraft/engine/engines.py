"""Builds engines from a model, its copies with adapters, and settings: a shared one, and any number of others."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from weakref import ref

from torch import Tensor

from redraft.config import MAX_END_IDS
from redraft.engine.build import new_runner, stored_units
from redraft.engine.engine import Engine
from redraft.engine.settings import EngineSettings
from redraft.errors import SettingError
from redraft.model import Model
from redraft.model.packed.transformer import PackedTransformer
from redraft.settings import MAX_CANVAS, MIN_CANVAS
from redraft.text.marks import Decoder


class Engines:
    """Engines on one model and its copies with one adapter each.

    models    by adapter; None is the model itself
    settings  for every engine that is not given its own
    """

    def __init__(self, model: Model, decoder: Decoder, *, eos_ids: tuple[int, ...], settings: EngineSettings) -> None:
        self.models: dict[str | None, Model] = {None: model}
        self.settings = settings
        self._decoder, self._eos_ids = decoder, eos_ids
        self._engine: Engine | None = None
        self._built_for: tuple[object, ...] | None = None
        self._lock = threading.Lock()

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the copies' adapters."""
        return tuple(name for name in self.models if name is not None)

    @property
    def canvas_length(self) -> int:
        """The length of a canvas whose settings do not set one."""
        return min(max(self.models[None].config.canvas_length, MIN_CANVAS), MAX_CANVAS)

    def add(self, name: str, adapted: Model) -> None:
        """Add a copy of the model with another adapter."""
        with self._lock:
            self.models = self.models | {name: adapted}  # other threads may be reading the old ones
            self._engine = None  # the next one knows the new name

    def shared(self, adapter: str | None) -> Engine:
        """The engine for all threads, made on first use and rebuilt when the model has moved.

        If models with different adapters are on different devices or in different dtypes, all follow that of `adapter`.
        """
        with self._lock:
            model = self.models[adapter]
            device, dtype = model.device, model.dtype
            built_for = device, dtype, stored_units(model, self.settings)
            if self._engine is None or built_for != self._built_for:
                self._engine = None  # frees its pages for those of the next one
                for other in self.models.values():  # moving one model moves only the weights that they share
                    if any((weight.device, weight.dtype) != (device, dtype) for weight in other.parameters()):
                        other.to(device, dtype)
                self._engine, self._built_for = self.new(), built_for
            return self._engine

    def new(self, settings: EngineSettings | None = None) -> Engine:
        """A separate engine with its own pages. Raises `SettingError` for settings that are not possible."""
        settings, model = settings or self.settings, self.models[None]
        if isinstance(model, PackedTransformer) and len(self._eos_ids) > MAX_END_IDS:
            raise SettingError(
                f"There are {len(self._eos_ids)} end-of-text ids; on a GPU there may be at most {MAX_END_IDS}."
            )
        adapted = {name: self.models[name] for name in self.adapters}
        return Engine(
            new_runner(model, settings, adapted),
            self._decoder,
            vocab_size=model.config.vocab_size,
            canvas_length=self.canvas_length,
            eos_ids=self._eos_ids,
            settings=settings,
            adapters=self.adapters,
            weights=WeightChanges(self.models.values()),
        )


class WeightChanges:
    """Counts how often the weights of some models were found to differ from those of the call before."""

    def __init__(self, models: Iterable[Model]) -> None:
        self._models = models
        self._seen: list[tuple[ref[Tensor], int, int]] = []
        self._changes = 0

    def __call__(self) -> int:
        """Look for weights that were replaced, or written to through PyTorch, and return the number of changes."""
        weights = {id(weight): weight for model in self._models for weight in (*model.parameters(), *model.buffers())}
        now = [(weight, weight.data_ptr(), _writes(weight)) for weight in weights.values()]
        if len(now) != len(self._seen) or any(
            old() is not weight or before != after
            for (old, *before), (weight, *after) in zip(self._seen, now, strict=True)
        ):
            self._seen = [(ref(weight), address, writes) for weight, address, writes in now]
            self._changes += 1
        return self._changes


def _writes(weight: Tensor) -> int:
    """PyTorch's count of writes to a weight."""
    return 0 if weight.is_inference() else weight._version
