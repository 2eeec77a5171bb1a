"""An open model folder: every weight of the model under our own name, in the number format in which it is stored.

Headers are read when the folder is opened, so a folder that does not match its config fails before anything is
allocated; each tensor is read from its memory-mapped file on request, and nothing is cached.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from mmap import mmap
from pathlib import Path

import torch

from redraft.errors import CheckpointError
from redraft.model.files import HeaderEntry, described, listed, map_shard, read_headers, tensor_in
from redraft.model.folders import READABLE, read_config
from redraft.model.layouts import IGNORED, PLAIN_DTYPES, Weight, each_tensor, join, layout_of
from redraft.model.names import EXPERTS, is_vision, split_experts, tied_to, to_hugging_face
from redraft.model.transformer import Transformer
from redraft.model.vision import VisionTower


class Checkpoint:
    """A folder whose files match its config. Raises `CheckpointError` listing everything that does not.

    With `vision` False the weights of a vision tower are left out and not checked.
    """

    def __init__(self, folder: Path, *, vision: bool = True) -> None:
        self.folder, self.config, self.vision = folder, read_config(folder), vision
        self._stored = read_headers(folder)
        self._mapped: tuple[Path, mmap] | None = None
        self.has_vision = vision and any(map(is_vision, self._stored))
        """Whether it includes a vision tower."""
        attention = self.config.extra["text_config"].get("use_bidirectional_attention")
        if self.has_vision and attention != "vision":
            raise CheckpointError(
                f"{folder} has a vision tower, and its config.json sets use_bidirectional_attention to {attention!r}; "
                "the parts of an image attend to each other, so it must be 'vision' (vision=False loads only the text "
                "model)."
            )
        state = self.empty_model().state_dict()
        self.shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
        self._bases = {name: self._base(name) for name in self.shapes}
        self._bare = {base for name, base in self._bases.items() if not to_hugging_face(name).endswith(".weight")}
        matrices = (self._matrices(name) for name, shape in self.shapes.items() if len(shape) > 1)
        self._layouts = {base: layout_of(base, self._stored) for rows in matrices for bases in rows for base in bases}
        """How each stored matrix is quantized; None if it is plain or absent. Vectors are never quantized."""
        self._check()

    def empty_model(self) -> Transformer:
        """The model without its weights, on the device "meta"."""
        with torch.device("meta"):
            model = Transformer(self.config)
            model.vision = VisionTower.of(self.config) if self.has_vision else None
        return model

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of unquantized weights: the embedding's, or the last norm's if the embedding is quantized."""
        full = "embedding.weight" if self._layouts.get(self._bases["embedding.weight"]) is None else "norm.weight"
        return self.dtype_of(full)

    def dtype_of(self, name: str) -> torch.dtype:
        """The dtype of one unquantized weight; bfloat16 if it is decoded as it is read."""
        return PLAIN_DTYPES.get(self._stored[self._first_tensor(name)].dtype, torch.bfloat16)

    @property
    def coded(self) -> bool:
        """Whether matrices are of quantized types that are decoded as they are read (from a GGUF file)."""
        return any(entry.coded for entry in self._stored.values())

    @property
    def formats(self) -> dict[str, str]:
        """Number format ("fp8", "int4", "uint4", "nvfp4") of every weight that is quantized, by our name."""
        found = {name: self._layouts.get(self._matrices(name)[0][0]) for name in self.shapes}
        return {name: layout.name for name, layout in found.items() if layout is not None}

    @property
    def groups(self) -> dict[str, int]:
        """How many inputs share a scale in every weight that is stored in INT4 or UINT4, by our name."""
        inputs = {name: self.shapes[name][-1] for name, format in self.formats.items() if format in ("int4", "uint4")}
        return {name: count // self._scales(self._matrices(name)[0], count) for name, count in inputs.items()}

    def names(self) -> Iterator[str]:
        """All our names, in shard order, so that reading them in turn opens each file once."""
        return iter(sorted(self.shapes, key=lambda name: (self._shard(name), name)))

    def weight(self, name: str) -> Weight:
        """One weight on the CPU, experts as one block [E,N,K]."""
        matrices = [self._matrix(base) for bases in self._matrices(name) for base in bases]
        weight, shape = matrices[0] if len(matrices) == 1 else join(matrices, torch.cat), self.shapes[name]
        if len(weight.shape) == len(shape):
            return weight
        return each_tensor(weight, lambda rows: rows.unflatten(0, (shape[0], -1)))

    def _matrices(self, name: str) -> list[tuple[str, ...]]:
        """The stored matrices that make up one of our names: a list of experts to stack, each of rows to join."""
        if EXPERTS.fullmatch(name):
            split = split_experts(name, self.config.num_experts)
            if any(split[0][0] + suffix in self._stored for suffix in (".weight", ".weight_packed")):
                return split
        return [(self._bases[name],)]

    def _base(self, name: str) -> str:
        """The file's name of a weight, without `.weight`."""
        theirs = to_hugging_face(name)
        if name.endswith("encode_scalar") and theirs not in self._stored:  # some writers keep only the decoder's
            theirs = to_hugging_face(name.replace("encode_scalar", "denoise_scalar"))
        return theirs.removesuffix(".weight")

    def _tensors_of(self, base: str) -> list[str]:
        """The names in the files of the tensors that make up one stored matrix."""
        layout = self._layouts.get(base)
        if layout is None:
            return [base if base in self._bare else base + ".weight"]
        return [base + suffix for suffix in layout.suffixes]

    def _matrix(self, base: str) -> Weight:
        layout, names = self._layouts.get(base), self._tensors_of(base)
        tensors = [self._tensor(name) for name in names]
        if layout is None:
            return tensors[0]
        for name, tensor in zip(names, tensors, strict=True):
            if "_scale" in name.removeprefix(base):
                self._check_scale(name, tensor)
        return layout.read(*tensors)

    def _check_scale(self, name: str, scale: torch.Tensor) -> None:
        """Raise `CheckpointError` for scales with which no matrix can have been stored."""
        if not _all_finite(scale):
            raise CheckpointError(f"{name} in {self.folder} has infinite or NaN values, which are no scales.")
        if scale.numel() == 1 and not scale.float().any():  # rows and groups of zeros may have a scale of 0
            raise CheckpointError(f"{name} in {self.folder} is 0, which is no scale of a whole matrix.")

    def _tensor(self, name: str) -> torch.Tensor:
        """One tensor. The last shard stays mapped."""
        entry = self._stored[name]
        if self._mapped is None or self._mapped[0] != entry.shard:
            self._mapped = entry.shard, map_shard(entry.shard)
        return tensor_in(self._mapped[1], entry)

    def _shard(self, name: str) -> str:
        return str(self._stored[self._first_tensor(name)].shard)

    def _first_tensor(self, name: str) -> str:
        """The name in the files of the first tensor that makes up one of our weights."""
        return self._tensors_of(self._matrices(name)[0][0])[0]

    # --- does everything fit? ------------------------------------------------------------------------------------

    def _check(self) -> None:
        if (old := next((name for name in self._stored if name.endswith(".qweight")), None)) is not None:
            raise CheckpointError(f"{self.folder} stores {old} as AutoAWQ and GPTQ do; {READABLE}.")
        wanted: dict[str, tuple[int, ...] | None] = {}
        for name in self.shapes:
            wanted |= self._wanted(name)
        found = {name: self._stored[name] for name in wanted if name in self._stored}
        _raise_if_any(described(self.folder), {
            "missing": [name for name in wanted if name not in self._stored],
            "unexpected": [name for name in self._stored if name not in wanted and not self._may_be_left_out(name)],
            "misshapen": [f"{name} {list(entry.shape)} instead of {list(wanted[name] or [1])}"
                          for name, entry in found.items() if not _fits(entry.shape, wanted[name])],
            "in several formats": [name for name in self.shapes if len(self._formats_of(name)) > 1],
            "of an unsupported dtype": [f"{name} {entry.dtype}" for name, entry in found.items()
                                        if not self._readable(name, entry)],
        })  # fmt: skip
        for name in self._stored.keys() - wanted.keys():
            self._check_copy(name, tied_to(name))
            if self._indexes_groups(name):
                self._check_index(name)

    def _check_copy(self, name: str, partner: str | None) -> None:
        """Raise `CheckpointError` for a copy of a tied tensor that is not the same: they share one weight here."""
        if partner is None or partner not in self._stored:
            return
        first, second = self._stored[name], self._stored[partner]
        same = (first.shape, first.dtype) == (second.shape, second.dtype)
        if not same or not torch.equal(_bytes(self._tensor(name)), _bytes(self._tensor(partner))):
            raise CheckpointError(
                f"{name} in {described(self.folder)} differs from the tensor it is tied to, {partner}; a model has one "
                "weight for both."
            )

    def _indexes_groups(self, name: str) -> bool:
        """Whether the tensor says to which group each input of a matrix belongs."""
        base, _, last = name.rpartition(".")
        return last == "weight_g_idx" and self._layouts.get(base) is not None and self._stored[name].dtype == "I32"

    def _check_index(self, name: str) -> None:
        """Raise `CheckpointError` if the inputs of a group are not neighbours."""
        index = self._tensor(name)
        count = self._stored[name.replace("_g_idx", "_scale")].shape[-1]
        if not torch.equal(index.long(), torch.arange(len(index)) * count // max(len(index), 1)):
            raise CheckpointError(
                f"{name} in {self.folder} forms groups of inputs that are not neighbours (actorder 'group'); such "
                "weights cannot be read."
            )

    def _may_be_left_out(self, name: str) -> bool:
        return (
            (is_vision(name) and not self.has_vision)
            or tied_to(name) is not None
            or name.endswith(IGNORED)
            or self._indexes_groups(name)
        )

    def _wanted(self, name: str) -> dict[str, tuple[int, ...] | None]:
        """The stored tensors that make up one of our weights, with their shapes; None for one number in any shape."""
        matrices, shape = self._matrices(name), self.shapes[name]
        if matrices == [(self._bases[name],)] and self._layouts.get(self._bases[name]) is None:
            return {self._tensors_of(self._bases[name])[0]: shape}
        wanted: dict[str, tuple[int, ...] | None] = {}
        flat = [base for bases in matrices for base in bases]
        scales = self._scales(flat, shape[-1])
        for base in flat:
            layout, rows = self._layouts.get(base), shape[-2] // len(matrices[0])
            shapes = [(rows, shape[-1])] if layout is None else layout.shapes(rows, shape[-1], scales)
            wanted |= dict(zip(self._tensors_of(base), shapes, strict=True))
        return wanted

    def _scales(self, bases: Sequence[str], inputs: int) -> int:
        """Scales per row, from the first of a weight's matrices whose scales divide the inputs evenly; else 1."""
        shapes = [self._stored[name].shape for base in bases if (name := base + ".weight_scale") in self._stored]
        counts = (shape[-1] for shape in shapes if len(shape) == 2)
        return next((count for count in counts if count and inputs % count == 0), 1)

    def _formats_of(self, name: str) -> set[str | None]:
        """The number formats of a weight's matrices that are there (there must be only one); None for plain ones."""
        bases = (base for bases in self._matrices(name) for base in bases if self._tensors_of(base)[0] in self._stored)
        found = {self._layouts.get(base) for base in bases}
        return {None if layout is None else layout.name for layout in found}

    def _readable(self, name: str, entry: HeaderEntry) -> bool:
        base, _, last = name.rpartition(".")
        layout = self._layouts.get(base)
        allowed = {} if layout is None else dict(zip(layout.suffixes, layout.dtypes, strict=True))
        return entry.coded or entry.dtype in allowed.get(f".{last}", PLAIN_DTYPES)


def _all_finite(scale: torch.Tensor) -> bool:
    if scale.dtype == torch.float8_e4m3fn:  # by its bits, as NVFP4 has many scales: 45 times as fast as by numbers
        return int((scale.view(torch.uint8) & 0x7F).max()) != 0x7F
    return bool(scale.isfinite().all())


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...] | None) -> bool:
    return math.prod(shape) == 1 if wanted is None else shape == wanted


def _raise_if_any(folder: Path, problems: Mapping[str, list[str]]) -> None:
    sentences = [f"{len(names)} {kind}: {listed(names)}" for kind, names in problems.items() if names]
    if sentences:
        raise CheckpointError(f"The tensors in {folder} do not fit its config: {'; '.join(sentences)}.")
