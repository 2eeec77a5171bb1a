"""Questions as prompts: what the model reads about the choices, and the same question without its content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from redraft.deciding.calibration import CONTENT_FREE
from redraft.deciding.form import CHOICE, Form
from redraft.errors import PromptError, SettingError, check_utf8
from redraft.model import Model
from redraft.text.placing import EncodedPrompt
from redraft.text.tokenizer import Tokenizer

Tools = Sequence[Mapping[str, Any]] | None
Question = str | Sequence[Mapping[str, Any]] | Sequence[int]


class DecidingLLM(Protocol):
    """The part of `redraft.llm.LLM` that deciding needs."""

    @property
    def model(self) -> Model: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    def read_prompt(self, prompt: Any, *, raw: bool = False) -> EncodedPrompt: ...
    def read_chat(self, messages: Sequence[Mapping[str, Any]], *, tools: Tools = None) -> EncodedPrompt: ...


def split_questions(question: Question | Sequence[Question]) -> tuple[list[Question], bool]:
    """The questions as a list, and whether several were asked: a list of strings or of lists means several."""
    if isinstance(question, str):
        return [question], False
    if not isinstance(question, Sequence) or isinstance(question, bytes) or not len(question):
        sentence = "The question must be a non-empty str, list of messages, list of token ids, or list of them."
        raise PromptError(sentence, "question")
    several = all(isinstance(item, str | list | tuple) for item in question)
    return (list(question), True) if several else ([question], False)  # type: ignore[list-item, return-value]


def read_question(llm: DecidingLLM, question: Question, form: Form, tools: Tools) -> EncodedPrompt:
    """The question as the model reads it. A `str` gets the choices; messages and ids are used as they are."""
    if isinstance(question, str):
        if not question.strip():
            raise PromptError("The question is empty.", "question")
        check_utf8(question, "question")
        question = [{"role": "user", "content": with_choices(question, form)}]
    if isinstance(question, Sequence) and question and all(isinstance(message, Mapping) for message in question):
        return llm.read_chat(question, tools=tools)  # type: ignore[arg-type]
    if tools is not None:
        raise SettingError("tools belong to a question that is a str or a list of messages.", "tools")
    return llm.read_prompt(question)


def content_free(question: Question) -> Question | None:
    """The question with nothing asked; None for token ids, whose content cannot be told from their form."""
    if isinstance(question, str):
        return CONTENT_FREE
    if not all(isinstance(message, Mapping) for message in question):
        return None
    messages: list[Mapping[str, Any]] = list(question)  # type: ignore[arg-type]
    users = [number for number, message in enumerate(messages) if message.get("role") == "user"]
    if not users:
        return None
    messages[users[-1]] = {**messages[users[-1]], "content": CONTENT_FREE}
    return messages


def with_choices(question: str, form: Form) -> str:
    """The question and instructions on how to answer it."""
    if form.names == (CHOICE,) and form.literals == ("", ""):
        return f"{question}\n\nAnswer with one of these: {' | '.join(form.choices[0])}"
    shape = form.literals[0] + "".join(
        f"{{{name}}}{literal}" for name, literal in zip(form.names, form.literals[1:], strict=True)
    )
    slots = "\n".join(
        f"{name} is one of: {' | '.join(choices)}" for name, choices in zip(form.names, form.choices, strict=True)
    )
    return f"{question}\n\nAnswer in this form: {shape}\n{slots}"
