"""Any kind of prompt to what the model reads: a text, a chat with images, or token ids as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from redraft.checks import require_type
from redraft.errors import NO_TEMPLATE, WITHOUT_TEMPLATE, PromptError, SettingError
from redraft.text.images import Grid
from redraft.text.messages import check_messages, plain_data
from redraft.text.placing import EncodedPrompt, decoded_images, parts_of, place_images, take_images
from redraft.text.prompt import encode_chat, thought_open
from redraft.text.template import ChatTemplate
from redraft.text.tokenizer import Tokenizer

Message = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class VisionSettings:
    """How a model with a vision tower reads images.

    marks    the token ids around an image (`ModelConfig.image_marks`)
    context  the most tokens a prompt may have
    """

    grid: Grid
    marks: tuple[int, int, int]
    context: int


@dataclass(frozen=True, slots=True)
class PromptReader:
    """Reads prompts for one model; `vision_settings` is None for a model without vision."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    vision_settings: VisionSettings | None = None

    def prompt(self, prompt: Any, *, raw: bool = False, **chat: Any) -> EncodedPrompt:
        """See `LLM.generate`; `chat` are settings of `chat`, for a text or messages that become a chat.

        Raises `PromptError` for an empty or malformed prompt, and `SettingError` for a `raw` that is not a bool.
        """
        require_type("raw", raw, bool)
        if isinstance(prompt, str):
            return self._text(prompt, raw, **chat)
        if raw:
            raise PromptError("raw=True needs a str.", "raw")
        if isinstance(prompt, EncodedPrompt):
            return prompt
        if isinstance(prompt, bytes | bytearray) or not isinstance(prompt, Sequence) or not len(prompt):
            sentence = "The prompt must be a non-empty str, list of messages or list of token ids."
            raise PromptError(sentence, "prompt")
        if all(isinstance(item, str) for item in prompt):
            raise PromptError("A list of texts is several prompts; generate_batch and score_batch take such.", "prompt")
        if all(isinstance(item, Mapping) for item in prompt):
            return self._conversation(prompt, **chat)
        self.tokenizer.check_ids(prompt)
        return EncodedPrompt(tuple(map(int, prompt)))

    def chat(
        self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]] | None = None, thinking: bool = False
    ) -> EncodedPrompt:
        """See `LLM.read_chat`."""
        if self.template is None:
            raise SettingError(WITHOUT_TEMPLATE, code=NO_TEMPLATE)
        if isinstance(messages, str) or not isinstance(messages, Sequence) or not messages:
            raise PromptError("messages must be a list with at least one message.", "messages")
        begun = ""
        if _ends_with_an_answer(messages):
            messages, begun = messages[:-1], _words_of(messages)
            if thinking:
                raise SettingError("The answer has already begun, so the model cannot think before it.", "thinking")
        shown, images = take_images(messages, *self._image_limits)
        ids = encode_chat(
            self.template, self.tokenizer, list(shown), tools=tools or None, begun=begun, enable_thinking=thinking
        )
        if begun and thought_open(ids, self.tokenizer):
            raise PromptError(
                "This model's chat template lets the model think here, so its answer cannot be begun for it."
            )
        read = (
            EncodedPrompt(tuple(ids))
            if self.vision_settings is None
            else place_images(ids, images, self.vision_settings.marks)
        )
        return replace(read, begun=bool(begun), chat=True)

    def decoded(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The same conversation with images that are not decoded again; see `placing.decoded_images`."""
        return decoded_images(messages, *self._image_limits)

    @property
    def _image_limits(self) -> tuple[Grid | None, int | None]:
        return (
            (None, None) if self.vision_settings is None else (self.vision_settings.grid, self.vision_settings.context)
        )

    def _text(self, text: str, raw: bool, **chat: Any) -> EncodedPrompt:
        if not text:
            raise PromptError("The prompt is empty.", "prompt")
        if not raw:
            return self._conversation([{"role": "user", "content": text}], **chat)
        return EncodedPrompt((self.tokenizer.bos_id, *self.tokenizer.encode(text, special=False)))

    def _conversation(self, messages: Sequence[Message], **chat: Any) -> EncodedPrompt:
        """A prompt that is a conversation, and need not be one."""
        if self.template is None:
            raise SettingError(f"{WITHOUT_TEMPLATE} Pass a text with raw=True, or token ids.", code=NO_TEMPLATE)
        return self.chat(messages, **chat)


def _ends_with_an_answer(messages: Sequence[Message]) -> bool:
    """Whether the assistant speaks last: no person or tool follows, and its message contains no tool results."""
    last = messages[-1]
    return isinstance(last, Mapping) and last.get("role") == "assistant" and not last.get("tool_responses")


def _words_of(messages: Sequence[Message]) -> str:
    """The text of the assistant's message at the end, which may contain nothing else."""
    check_messages(messages)
    last = messages[-1]
    if last.get("tool_calls"):
        raise PromptError("The last message calls tools; their results must follow it.")
    if any(last.get(name) for name in ("reasoning", "reasoning_content", "thinking")):
        raise PromptError("The last message is an answer that has begun; it may hold text, but no thoughts.")
    if other := [part["type"] for part in parts_of(last) if part["type"] != "text"]:
        raise PromptError(f"The last message is an answer that has begun; it may hold text, but no {other[0]}.")
    content = plain_data(last.get("content") or "", f"messages[{len(messages) - 1}].content")
    words = content if isinstance(content, str) else "".join(part["text"] for part in content)
    if not words:
        raise PromptError("The last message is an empty assistant message; leave it out.")
    if len(messages) == 1:
        raise PromptError("The only message is the assistant's; there must be a message that it answers.")
    return words
