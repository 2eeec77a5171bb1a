"""Chat messages to prompt text, with a model's own Jinja template.

Templates come with checkpoints and are untrusted programs, so they run in Jinja's immutable sandbox and see nothing but
plain JSON data. In it they find what Transformers gives them (the same whitespace rules, loop controls, `tojson`,
`raise_exception`, `strftime_now`, reasoning under its three names), because that is what they were written for: the
output is equal byte for byte.

Templates silently drop what they do not know. So messages are checked first, and options that the template does not
read are refused.
"""

import datetime
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from redraft.errors import CheckpointError, PromptError, SettingError, why
from redraft.text.messages import check_messages, check_tools, plain_data, plain_messages

DEFAULT_TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}

_GENERATION_TAGS = {"generation"}
_REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")


class ChatTemplate:
    """One compiled chat template; `render` may be called from several threads."""

    def __init__(self, source: str, *, special_tokens: Mapping[str, str] | None = None) -> None:
        """`special_tokens` are the strings that templates call `bos_token` and so on; DiffusionGemma's by default."""
        self.source = source
        self.special_tokens = {**DEFAULT_TOKENS, **(special_tokens or {})}
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise CheckpointError(
                f"The chat template is not valid Jinja (line {error.lineno}): {str(error.message).rstrip('.')}."
            ) from error

    @functools.cached_property
    def variables(self) -> frozenset[str]:
        """The names that the template reads from outside: the options it knows."""
        return frozenset(jinja2.meta.find_undeclared_variables(_environment().parse(self.source)))

    @property
    def can_think(self) -> bool:
        """Whether the model can be asked to think before it answers."""
        return "enable_thinking" in self.variables

    @classmethod
    def from_folder(cls, path: str | Path) -> "ChatTemplate":
        """The template of a model folder; see `find`. Raises CheckpointError if it has none."""
        template = cls.find(path)
        if template is None:
            raise CheckpointError(f"The folder {str(path)!r} has no chat template (chat_template.jinja).")
        return template

    @classmethod
    def find(cls, path: str | Path) -> "ChatTemplate | None":
        """Read `chat_template.jinja` of a model folder, or `chat_template` inside its tokenizer_config.json.

        None if neither exists; raises CheckpointError if it cannot be read.
        """
        folder = Path(path)
        config = _read_config(folder / "tokenizer_config.json")
        tokens = {name: text for name, value in config.items() if (text := _token_text(name, value))}
        file = folder / "chat_template.jinja"
        try:
            source = file.read_text("utf-8") if file.is_file() else _default_template(config.get("chat_template"))
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{file} is not UTF-8 text: {error.reason}.") from error
        except OSError as error:
            raise CheckpointError(f"{file} cannot be read: {why(error)}.") from error
        return None if source is None else cls(source, special_tokens=tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        enable_thinking: bool = False,
        now: datetime.datetime | None = None,
        **extra: Any,
    ) -> str:
        """Prompt text of a conversation, including `<bos>` where the template writes it.

        `messages` and `tools` have the OpenAI shape, with tool-call arguments as mappings. `now` is the time that the
        template is told, by default the current one. `extra` goes to the template
        (for example `preserve_thinking`); a name that the template does not read is a SettingError.
        Wrong messages, and messages that the template refuses, raise PromptError.
        """
        check_messages(messages)
        check_tools(tools)
        if enable_thinking and not self.can_think:
            raise SettingError("This model cannot think first: its chat template does not support it.", "thinking")
        self._check_options(extra, tools=bool(tools))
        chat = [_with_reasoning(message) for message in plain_messages(messages)]
        declared = plain_data(tools, "tools")
        time = now or datetime.datetime.now()
        variables = {**self.special_tokens, "documents": None, **plain_data(extra, "options")}
        try:
            return self._template.render(
                variables,
                messages=chat,
                tools=declared,
                add_generation_prompt=add_generation_prompt,
                enable_thinking=enable_thinking,
                strftime_now=lambda format: time.strftime(format),
            )
        except Exception as error:  # a template is itself a program
            raise PromptError(f"The chat template refuses these messages: {str(error).rstrip('.')}.") from error

    def _check_options(self, extra: Mapping[str, Any], **used: bool) -> None:
        for name in [*extra, *(name for name, value in used.items() if value)]:
            if name not in self.variables:
                raise SettingError(f"This model's chat template does not know {name!r}.")


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """Templates read a message's reasoning under different names: add the ones that the caller left out."""
    found = next((message[name] for name in _REASONING_NAMES if message.get(name) is not None), None)
    if found is None:
        return message
    return message | {name: found for name in _REASONING_NAMES if message.get(name) is None}


def _read_config(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # RecursionError: deeply nested brackets
        raise CheckpointError(f"{file} cannot be read as JSON: {why(error)}.") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{file} does not hold a JSON object.")
    return config


def _token_text(name: str, value: Any) -> str | None:
    """The string of a `*_token` entry, which may be a string or an object with settings."""
    if not name.endswith("_token"):
        return None
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _default_template(entry: Any) -> str | None:
    """`chat_template` is one template, or a list of named ones, of which `default` is used."""
    if isinstance(entry, list):
        named = {str(item.get("name")): item.get("template") for item in entry if isinstance(item, Mapping)}
        source = named.get("default")
    else:
        source = entry
    if entry is not None and not isinstance(source, str):
        raise CheckpointError(
            "tokenizer_config.json's chat_template must be a template, or a list of named ones with a 'default' among "
            "them."
        )
    return source


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks what a trainer supervises; rendering passes its body through, in a separate scope."""

    tags = _GENERATION_TAGS

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


class _Namespace(jinja2.utils.Namespace):
    """Jinja's `namespace` without attributes that begin with an underscore, which would reach Python's internals."""

    def __init__(*arguments: Any, **values: Any) -> None:
        self, *rest = arguments  # not a named parameter, so a template may store a value called `self`
        stored = dict(*rest, **values)
        for name in stored:
            _refuse_private(name)
        jinja2.utils.Namespace.__init__(self, stored)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


class _DictFactory:
    """`dict(...)` and `dict.fromkeys(...)` for templates, without the class object behind them."""

    def __call__(self, *arguments: Any, **values: Any) -> dict[Any, Any]:
        return dict(*arguments, **values)

    def fromkeys(self, keys: Any, value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


def _refuse_private(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot hold the private name {name!r}")


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Plain JSON: Jinja's own filter escapes `<`, `>`, `&` and `'` for HTML, which a model would read literally."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@functools.lru_cache(maxsize=1)
def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_raise_exception, dict=_DictFactory(), namespace=_Namespace)
    return environment
