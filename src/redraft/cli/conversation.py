"""A conversation of `redraft chat`: what was said, how the next message is answered, and the commands about it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redraft.cli.answer import INTERRUPTED, Tally, follow
from redraft.cli.images import image_part, with_images
from redraft.cli.options import read_bias
from redraft.cli.output import facts, json_line
from redraft.cli.replace import write_file
from redraft.errors import InputError, check_utf8, why
from redraft.outputs import check_file
from redraft.settings import resolve_settings

if TYPE_CHECKING:
    from redraft.cli.options import ModelOptions, OutputOptions
    from redraft.cli.trace import TraceWriter
    from redraft.llm import LLM


@dataclass(slots=True)
class Conversation:
    """What was said so far, and how the next message is answered. Its commands return what a person is told."""

    llm: LLM
    model: ModelOptions
    given: dict[str, Any]
    system: str | None
    thinking: bool
    output: OutputOptions
    trace: TraceWriter | None
    messages: list[dict[str, Any]] = field(default_factory=list)
    shown: list[dict[str, Any]] = field(default_factory=list)
    """Images waiting for the next message."""
    answers: list[dict[str, Any]] = field(default_factory=list)
    asked: tuple[list[dict[str, Any]], dict[str, Any], str] | None = None
    """The last question: the messages before it, its own, and its text."""
    tries: int = 1
    """How often it was answered."""

    def __post_init__(self) -> None:
        self.reset()

    def reset(self, argument: str = "") -> str:
        """Start over, with only the system's instructions."""
        self.shown, self.asked = [], None
        self.messages = [{"role": "system", "content": self.system}] if self.system else []
        return "The conversation is forgotten."

    def show(self, name: str) -> str:
        """Show an image with the next message. Raises `InputError` if it is not an image or the model has no vision."""
        if not name:
            raise InputError("/image needs the name of a file.")
        part = image_part(name)
        self.llm.read_chat([{"role": "user", "content": [part]}])
        self.shown.append(part)
        return f"{name} will be shown with your next message."

    def think(self, word: str) -> str:
        """Let the model think before it answers, or not: "on", "off", or "" for the other. Raises `InputError`."""
        if word not in ("", "on", "off"):
            raise InputError("/think takes on or off.")
        wanted = word == "on" if word else not self.thinking
        self.llm.encode_chat([{"role": "user", "content": "?"}], thinking=wanted)
        self.thinking = wanted
        return f"The model {'thinks before it answers' if wanted else 'answers without thinking first'}."

    def set(self, words: str) -> str:
        """Change a setting of later answers, "NAME VALUE"; a NAME alone goes back to the model's own."""
        name, _, value = words.partition(" ")
        name = name.replace("-", "_")
        if not name:
            return "Set: " + (", ".join(f"{name} {value}" for name, value in self.given.items()) or "nothing")
        if name == "logprobs":
            raise InputError("A conversation shows no logprobs; Python and the server do.")
        given = {**self.given, name: _value(name, value.strip())}
        resolved = resolve_settings(self.llm.defaults, **given)
        self.given = {name: value for name, value in given.items() if value is not None}
        return f"{name} is {self.given.get(name, getattr(resolved, name, 'balanced'))}."

    def save(self, name: str) -> str:
        """Write the conversation to a file, as `--json` prints it."""
        if not name:
            raise InputError("/save needs the name of a file.")
        check_file(path := Path(name).expanduser())
        try:
            write_file(path, json_line(self.to_dict()) + "\n")
        except OSError as error:
            raise InputError(f"{path} cannot be written: {why(error)}.") from error
        return f"The conversation is in {path}."

    def to_dict(self) -> dict[str, Any]:
        """What was said, with the answers' costs and the settings."""
        return {"messages": self.messages, "answers": self.answers} | facts(self.llm, self.model, self.given)

    def ask(self, text: str) -> Tally:
        """One exchange. A question that cannot be asked (it no longer fits) leaves the conversation as it was."""
        check_utf8(text, "The message")
        question = {"role": "user", "content": with_images(text, self.shown)}
        tally = self._answer(self.messages, question, text, self.given)
        self.asked, self.tries = (self.messages, question, text), 1
        if _is_worth_keeping(tally):
            self._keep(tally)
            self.shown = []
        return tally

    def retry(self) -> Tally:
        """Answer the last message again, with the next seed; the new answer takes the old one's place."""
        if self.asked is None:
            raise InputError("There is no message to answer again.")
        seed = (self.given.get("seed", self.llm.defaults.seed) + self.tries) % 2**63
        tally = self._answer(*self.asked, self.given | {"seed": seed})
        self.tries += 1
        if _is_worth_keeping(tally):
            self._keep(tally)
        return tally

    def _answer(
        self, before: list[dict[str, Any]], question: dict[str, Any], text: str, given: dict[str, Any]
    ) -> Tally:
        from redraft.cli.view import screen_for

        prompt = self.llm.read_chat([*before, question], thinking=self.thinking)
        records = self.llm.stream(prompt, thinking=self.thinking, **given)
        screen = screen_for(self.llm, given, live=not self.output.no_live, json=self.output.json)
        if self.trace is not None:
            self.trace.turn(text)
        tally = follow(records, screen, self.trace)
        self.answers.append(tally.to_dict())
        return tally

    def _keep(self, tally: Tally) -> None:
        """Make an answer to the last question part of the conversation."""
        from redraft.text.marks import Marker
        from redraft.text.reply import read_reply

        assert self.asked is not None
        before, question, _ = self.asked
        # Thoughts do not belong in a history: the chat format expects them to be left out.
        said = read_reply(Marker(self.llm.tokenizer).mark(tally.text, tally.token_ids)).content
        self.messages = [*before, question, {"role": "assistant", "content": said}]


def _is_worth_keeping(tally: Tally) -> bool:
    return bool(tally.text) or tally.finish_reason != INTERRUPTED


def _value(name: str, text: str) -> Any:
    """A setting's value as it is typed; None for nothing."""
    if not text or name in ("preset", "stop"):
        return text or None
    if name == "logit_bias":
        return read_bias(text.split())
    try:
        return json.loads(text)
    except ValueError:  # the setting says what it takes
        return text
