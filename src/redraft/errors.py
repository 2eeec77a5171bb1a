"""The exception tree. Catching `RedraftError` catches everything that Redraft raises on purpose.

RedraftError
├── InputError            (also a ValueError) something the caller gave cannot be honoured
│   ├── SettingError          a setting is unknown, out of range, or contradicts another
│   ├── ConstraintError       a constraint allows nothing, contradicts itself, or cannot be enforced
│   ├── PromptError           the prompt is empty, too long, or holds ids outside the vocabulary
│   ├── CheckpointError       a model folder is missing files, or its tensors do not fit its config
│   └── HubError              a hub id cannot be resolved (offline, unknown, no permission)
├── TrainingError         a run cannot go on (a NaN loss, a full disk)
├── QueueFullError        too many requests wait already; trying again later may help
└── EngineError           the engine has stopped, or broke while it worked on a request
    └── NotFiniteError        what the model computes is not a number

`serve.server.ListenError` and `train.shards.ShardError` are defined where they are raised.

`InputError` is for users and is raised before any compute; invariants inside Redraft use `assert`.
The command line maps InputError to exit code 2, Ctrl-C to 130, and everything else to 1.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

TOO_LONG = "context_length_exceeded"
"""The `code` of a prompt that is too long, alone or together with the answer; clients shorten it and ask again."""

NO_TEMPLATE = "no_chat_template"
"""The `code` of a conversation with a model whose folder has no chat template."""
WITHOUT_TEMPLATE = "This model folder has no chat template; it can only continue, fill, repair and score plain text."
"""What such an error says. Python and the command line add how to ask for that."""


def why(error: Exception) -> str:
    """What went wrong with a file, without the number and file name that an `OSError` adds."""
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8 text"
    return getattr(error, "strerror", None) or str(error)


class RedraftError(Exception):
    """Base of every error that Redraft raises on purpose."""


class InputError(RedraftError, ValueError):
    """The caller's input cannot be honoured; the message is one sentence that says why.

    `field` is the name of the argument or setting at fault, or the place inside it (`messages[1].content`); None if it
    is unknown or there is more than one. `code` is the code by which clients know this error, if they have one.
    """

    def __init__(self, message: str, field: str | None = None, *, code: str | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.code = code


def one_of(words: Iterable[str], *more: str) -> str:
    """What is allowed, for a message: "one of fp8, int4, or None" for the words of formats and one `more`."""
    return f"one of {', '.join((*words, *(f'or {word}' for word in more)))}"


@contextmanager
def about(field: str | None) -> Iterator[None]:
    """Blame `field` for every `InputError` raised inside, unless the error already names a field."""
    try:
        yield
    except InputError as error:
        error.field = error.field or field
        raise


class SettingError(InputError):
    """A setting is unknown, out of range, or contradicts another one."""


class ConstraintError(InputError):
    """A constraint is malformed, allows no text, contradicts itself, is too large, or cannot be enforced."""


class PromptError(InputError):
    """A prompt is empty, too long, malformed, or holds ids outside the vocabulary."""


def check_utf8(text: str, place: str | None = None, kind: type[InputError] = PromptError) -> None:
    """Raise an error of this kind for a text with a character that UTF-8 cannot express; it names the place, if any."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        name = place or "The text"
        raise kind(f"{name} holds a character that UTF-8 cannot express at index {error.start}.", place) from error


class CheckpointError(InputError):
    """A model folder is incomplete, damaged, or does not fit its own config."""


class HubError(InputError):
    """A hub id cannot be resolved: offline, unknown, or not permitted."""


class TrainingError(RedraftError):
    """A training run cannot go on."""


class QueueFullError(RedraftError):
    """Too many requests wait already. `retry_after` is a guess, in seconds, of when there is room again."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors pass from process to process."""
        return type(self), (str(self), self.retry_after)


class EngineError(RedraftError):
    """The engine has stopped, or broke while it worked on the request."""


class NotFiniteError(EngineError):
    """The model computes values that are not finite."""

    def __init__(self) -> None:
        super().__init__("The model's outputs are not finite: its weights, or those of its adapter, are damaged.")

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors pass from process to process."""
        return type(self), ()
