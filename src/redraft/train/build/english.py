"""English prose: the CPython manual, the glosses and examples of WordNet, the packages' READMEs and long docstrings."""

from __future__ import annotations

import ast
import inspect
import random
import re
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Tokenizer

from redraft.train.build.decontaminate import EvaluationFilter
from redraft.train.build.encoding import encode_plain
from redraft.train.build.python_code import evaluation_filter, wanted_files
from redraft.train.build.sources import debian_files, metadata, packages, wheel
from redraft.train.build.wordnet import Synset, synsets
from redraft.train.shards import Document, write_shard

_PARTS_OF_SPEECH = {"n": "noun", "v": "verb", "a": "adjective", "s": "adjective", "r": "adverb"}
_ENTRIES_PER_TEXT = 24
# Index entries, link targets and authors: directives that mean nothing to a reader.
_DIRECTIVE = re.compile(
    r"^\.\. (index|_[^:\n]*|sectionauthor|moduleauthor|module|highlight)::?.*\n((?: +.*)?\n)*?(?=\S|\n)", re.MULTILINE
)
_ROLE = re.compile(r":[a-zA-Z:+-]+:`[!~]?([^`<]*?)(?: *<[^`>]*>)?`")
_README_NOISE = re.compile(r"https?://\S{40}|^\s*<|!\[|\.\. image|^\s*:\w+:")
_MAX_CHARACTERS = 6000
_MIN_DOCSTRING = 600
_DOCSTRING_CHARACTERS = 5_000_000


def prose_texts(cache: Path) -> Iterator[str]:
    """Every prose text, each at most a few thousand characters and ending at a paragraph."""
    for text in (*manual_texts(cache), *readme_texts(cache)):
        yield from split_paragraphs(text)
    yield from wordnet_texts(cache)
    yield from docstring_texts(cache)


def manual_texts(cache: Path) -> Iterator[str]:
    """The sources of the CPython manual, without its change logs."""
    for path, text in debian_files("python3.11-doc", cache, ".rst.txt"):
        if "whatsnew/changelog" not in path and len(text) > 500:
            yield strip_markup(text)


def strip_markup(text: str) -> str:
    """Removes the roles and index entries of reStructuredText, which are noise to a reader."""
    text = _ROLE.sub(r"\1", _DIRECTIVE.sub("", text))
    return re.sub(r"\n{3,}", "\n\n", text)


def readme_texts(cache: Path) -> Iterator[str]:
    """The READMEs of the listed packages, without badges, images and HTML."""
    for package in packages():
        payload = metadata(wheel(package.name, package.version, cache)).get_payload(decode=True)
        text = payload.decode(errors="replace") if isinstance(payload, bytes) else ""
        lines = [line for line in text.replace("\r", "").split("\n") if not _README_NOISE.search(line)]
        yield re.sub(r"\n{3,}", "\n\n", "\n".join(lines))


def wordnet_texts(cache: Path) -> Iterator[str]:
    """Small dictionaries: one line per sense, with WordNet's example sentences."""
    for _, text in debian_files("wordnet-base", cache, ("data.noun", "data.verb", "data.adj", "data.adv")):
        entries = list(map(dictionary_entry, synsets(text)))
        for start in range(0, len(entries), _ENTRIES_PER_TEXT):
            yield "\n".join(entries[start : start + _ENTRIES_PER_TEXT]) + "\n"


def dictionary_entry(synset: Synset) -> str:
    """`word (noun): gloss. For example: "..."`"""
    word = synset.words[0][0].replace("_", " ")
    definition, _, examples = synset.gloss.partition('; "')
    entry = f"{word} ({_PARTS_OF_SPEECH[synset.part]}): {definition}."
    return f'{entry} For example: "{examples}' if examples else entry


def docstring_texts(cache: Path) -> Iterator[str]:
    """Long docstrings that read as prose, up to a fixed amount, spread over all packages."""
    found = [text for file in wanted_files(cache) for text in long_docstrings(file.text)]
    random.Random(0).shuffle(found)
    total = 0
    for text in dict.fromkeys(found):
        total += len(text)
        if total > _DOCSTRING_CHARACTERS:
            return
        yield text


def long_docstrings(code: str) -> Iterator[str]:
    """The docstrings of `code` that are long and mostly words."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(code)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        text = inspect.cleandoc(ast.get_docstring(node, clean=False) or "")
        if _MIN_DOCSTRING <= len(text) <= _MAX_CHARACTERS and _is_prose(text):
            yield strip_markup(text) + "\n"


def _is_prose(text: str) -> bool:
    return ">>>" not in text and sum(map(str.isalpha, text)) > 0.7 * len("".join(text.split())) + 0.1 * len(text)


def split_paragraphs(text: str) -> Iterator[str]:
    """`text` in pieces of at most a few thousand characters, each ending at a paragraph."""
    piece = ""
    for paragraph in re.split(r"(?<=\n)\n", text):
        if piece and len(piece) + len(paragraph) > _MAX_CHARACTERS:
            yield piece
            piece = ""
        piece += ("\n" if piece else "") + paragraph
    if len(piece) > 200:
        yield piece


def build(out: Path, cache: Path, tokenizer: Tokenizer, infill: Path) -> Path:
    """Writes `english.xz` into `out`; `infill` names the evaluation items to keep out."""
    path = out / "english.xz"
    write_shard(path, documents(prose_texts(cache), tokenizer, evaluation_filter(infill, cache)))
    return path


def documents(texts: Iterable[str], tokenizer: Tokenizer, evaluation: EvaluationFilter) -> Iterator[Document]:
    """One plain-text document per distinct text that shares nothing with the evaluation items."""
    kept = [text for text in dict.fromkeys(texts) if not evaluation.is_contaminated(text)]
    for tokens in encode_plain(tokenizer, kept):
        yield Document(tokens=tokens)
