"""Real pieces of text of the kinds that break editors: each is cut at random places by the tests."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

TEXTS = [
    "def add(a: int, b: int) -> int:\n    return a + b\n\n\nclass Stack(list):\n    def peek(self):\n        pass",
    "\ufeffimport os\r\nimport sys\r\n\r\ndef main():\r\n\tif len(sys.argv) > 1:\r\n\t\tprint(sys.argv[1])\r\n",
    "Straße, naïve café, Ελληνικά, Русский текст, 日本語のテキスト, العربية, हिन्दी.\nZweite Zeile ohne Ende",
    "🙂 family: 👩‍👩‍👧‍👦, flag: 🇩🇪, skin: 👍🏽, old: ☃\n\n\n    \t  mixed \t tabs\n",
    '{"name": "x", "values": [1, 2.5e-3, null, true], "nested": {"a": {"b": []}}}\n',
    "all:\n\tcc -O2 -o a a.c\n\t@echo done # <|turn> <eos> <|fill|> are words\n\n\x0c\x00\x1b[31mred\x1b[0m\r",
    "| a | b |\n|---|---|\n| 1 | `x|y` |\n\n- [ ] task\n  - sub\n    - sub\u00a0sub\u200bzero\u2028line\n",
    "e\u0301 is not \u00e9; \U0001d4d0\U0001d4d1 \U00020000\n  trailing spaces   \n\n\n",
]


def real_files() -> list[str]:
    """The ends of this project's own files, as they are, with CRLF, and without a final newline; and `TEXTS`."""
    here = Path(__file__).parents[2]
    names = ("Makefile", "README.md", "docs/filling.md", "examples/router.py", "tests/filling/hard_texts.py")
    files = [(here / name).read_bytes().decode()[-600:] for name in names]
    return [*files, *(text.replace("\n", "\r\n") for text in files), *(text.rstrip("\n") for text in files), *TEXTS]


def cuts(
    count: int, holes: int, seed: int, texts: Sequence[str] = tuple(TEXTS)
) -> Iterator[tuple[list[str], list[str]]]:
    """`count` times the pieces of a text around `holes` holes, and what stood in the holes, which may be nothing."""
    rng = random.Random(seed)
    while count:
        text = rng.choice(texts)
        edges = sorted(rng.randrange(len(text) + 1) for _ in range(2 * holes))
        spans = list(zip(edges[::2], edges[1::2], strict=True))
        starts, ends = [0, *(end for _, end in spans)], [*(start for start, _ in spans), len(text)]
        pieces = [text[start:end] for start, end in zip(starts, ends, strict=True)]
        if all(pieces[1:-1]) and any(pieces):
            count -= 1
            yield pieces, [text[start:end] for start, end in spans]
