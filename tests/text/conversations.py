"""Conversations that between them reach every branch of the chat templates."""

from typing import Any

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get weather",
        "parameters": {
            "type": "object",
            "properties": {
                "unit": {"type": "string", "enum": ["C", "F"]},
                "city": {"type": "string", "description": "City name"},
                "days": {"type": "integer", "description": "n"},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["city"],
        },
    },
}
BOOKING: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "book_table",
        "description": "Reserve a table",
        "parameters": {
            "type": "object",
            "properties": {
                "Where": {
                    "type": "string",
                    "description": 'Which "place"',
                    "enum": ["inside", "outside"],
                    "nullable": True,
                },
                "guest": {
                    "type": "object",
                    "description": "Who comes",
                    "properties": {"name": {"type": "string"}, "age": {"type": "number", "nullable": True}},
                    "required": ["name", "age"],
                },
                "loose": {"type": "object", "colour": {"type": "string"}, "additionalProperties": False},
                "bare": {"type": "object"},
                "dishes": {
                    "type": "array",
                    "description": "What to eat",
                    "items": {
                        "type": "object",
                        "description": "A dish",
                        "properties": {"title": {"type": "string"}, "count": {"type": "integer"}},
                        "required": ["title"],
                        "default": None,
                        "examples": [{"title": "soup", "count": 2}],
                    },
                },
                "mixed": {"type": "array", "items": {"type": ["string", "null"]}},
                "any": {"type": "array"},
                "level": {"type": "integer", "enum": [1, 2]},
                "sure": {"type": "boolean", "nullable": True},
            },
            "required": ["guest", "dishes"],
        },
        "response": {"description": "The number of the reservation", "type": "object"},
    },
}
CLOCK: dict[str, Any] = {"type": "function", "function": {"name": "clock", "description": "Tell the time"}}
NO_REQUIRED: dict[str, Any] = {
    "type": "function",
    "function": {"name": "stop", "description": "", "parameters": {"type": "object", "properties": {}}},
}


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: Any = None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def system(text: Any) -> dict[str, Any]:
    return {"role": "system", "content": text}


def call(name: str, arguments: Any, id: str = "c0") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(content: Any, id: str = "c0", **more: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content, **more}


NESTED = {
    "unit": "C",
    "city": "São Paulo",
    "days": 3,
    "x": True,
    "Tags": ["a", "b", ["c", {"d": None}]],
    "o": {"b": 1.5, "a": None, "Z": {}, "list": []},
    "big": 1e20,
    "minus": -4,
}
PARIS = call("get_weather", {"city": "Paris"})
ROME = call("get_weather", {"city": "Rome", "days": 2}, id="c1")

TEXT: dict[str, dict[str, Any]] = {
    "one question": {"messages": [user("Why is the sky blue?")]},
    "no generation prompt": {"messages": [user("Hi"), assistant("Hello!")], "add_generation_prompt": False},
    "system": {"messages": [system("  Be brief.\n"), user(" Hi there \n")]},
    "developer": {"messages": [{"role": "developer", "content": "Be kind."}, user("Hi")]},
    "system in parts": {
        "messages": [system([{"type": "text", "text": " a "}, {"type": "text", "text": "b"}]), user("Hi")]
    },
    "system later": {"messages": [user("Hi"), system("Now be brief."), user("Go on")]},
    "only system": {"messages": [system("Be brief.")]},
    "several turns": {"messages": [system("S"), user("a"), assistant("b"), user("c"), assistant("d"), user("e")]},
    "assistant twice": {"messages": [user("a"), assistant("b"), assistant("c"), user("d")]},
    "text in parts": {
        "messages": [
            user([{"type": "text", "text": " x "}, {"type": "text", "text": "y"}]),
            assistant([{"type": "text", "text": "z"}]),
        ]
    },
    "empty contents": {"messages": [user(""), assistant(""), user(" ")]},
    "inline thought": {
        "messages": [user("a"), assistant("<|channel>thought\nhm\n<channel|> b <channel|>c"), user("d")]
    },
    "markup": {"messages": [user("<b>&'\"{{ x }}</b>\n\n{% if %}"), assistant("é 日本 🙂"), user("ok")]},
    "reasoning": {"messages": [user("a"), assistant("b", reasoning="because")]},
    "old reasoning": {"messages": [user("a"), assistant("b", reasoning_content="because"), user("c")]},
    "thinking field": {"messages": [user("a"), assistant("b", thinking="because")]},
    "tools": {"messages": [user("Weather?")], "tools": [WEATHER]},
    "many tools": {"messages": [system("Use tools."), user("Go")], "tools": [BOOKING, WEATHER, CLOCK, NO_REQUIRED]},
    "call": {"messages": [user("w"), assistant(tool_calls=[PARIS])], "tools": [WEATHER]},
    "nested call": {"messages": [user("w"), assistant(tool_calls=[call("get_weather", NESTED)])], "tools": [WEATHER]},
    "no arguments": {
        "messages": [user("t"), assistant(tool_calls=[call("clock", {}), call("clock", None)])],
        "tools": [CLOCK],
    },
    "result": {"messages": [user("w"), assistant(tool_calls=[PARIS]), tool("sunny")], "tools": [WEATHER]},
    "two results": {
        "messages": [user("w"), assistant(tool_calls=[PARIS, ROME]), tool("sun", "c1"), tool("rain", "c0")]
    },
    "named result": {
        "messages": [user("w"), assistant(tool_calls=[PARIS]), {"role": "tool", "name": "other", "content": "sun"}]
    },
    "no ids": {
        "messages": [
            user("w"),
            assistant(tool_calls=[{"function": {"name": "f", "arguments": {}}}]),
            {"role": "tool", "name": "g", "content": None},
        ]
    },
    "result in parts": {
        "messages": [
            user("w"),
            assistant(tool_calls=[PARIS]),
            tool([{"type": "text", "text": "a"}, {"type": "text", "text": " b"}]),
        ]
    },
    "result and answer": {
        "messages": [user("w"), assistant(tool_calls=[PARIS]), tool("sun"), assistant("It is sunny."), user("Thanks")]
    },
    "call with words": {"messages": [user("w"), assistant("Let me see.", tool_calls=[PARIS]), tool("sun")]},
    "call after call": {
        "messages": [
            user("w"),
            assistant(tool_calls=[PARIS]),
            tool("sun"),
            assistant(tool_calls=[ROME]),
            tool("rain", "c1"),
        ]
    },
    "call then user": {"messages": [user("w"), assistant(tool_calls=[PARIS]), user("never mind")]},
    "call and assistant": {"messages": [user("w"), assistant(tool_calls=[PARIS]), assistant("done")]},
    "embedded results": {
        "messages": [
            user("w"),
            assistant(
                tool_calls=[PARIS],
                tool_responses=[{"name": "get_weather", "response": {"t": 3, "W": "sun", "n": {"b": 1, "a": []}}}],
            ),
        ]
    },
    "embedded, answered": {
        "messages": [
            user("w"),
            assistant(
                "Sun.", tool_calls=[PARIS], tool_responses=[{"name": "", "response": 3}, {"response": [1, None]}]
            ),
            user("ok"),
        ]
    },
    "call and reasoning": {"messages": [user("w"), assistant(tool_calls=[PARIS], reasoning="must look"), tool("sun")]},
}
CURRENT_ONLY: dict[str, dict[str, Any]] = {
    "preserved": {
        "messages": [
            user("w"),
            assistant(tool_calls=[PARIS], reasoning="must look"),
            tool("sun"),
            assistant("Sun."),
            user("And now?"),
        ],
        "preserve_thinking": True,
    },
}
TEXT.update(CURRENT_ONLY)
THINKING: dict[str, dict[str, Any]] = {
    f"thinking, {name}": {**TEXT[name], "enable_thinking": True}
    for name in (
        "one question",
        "system",
        "several turns",
        "tools",
        "call",
        "result",
        "result and answer",
        "embedded results",
    )
}
MEDIA: dict[str, dict[str, Any]] = {
    "image": {"messages": [user([{"type": "image"}, {"type": "text", "text": "What is this?"}])]},
    "all media": {
        "messages": [
            user(
                [
                    {"type": "image_url", "image_url": {"url": "x"}},
                    {"type": "audio", "audio": b"1"},
                    {"type": "video", "video": object()},
                ]
            ),
            assistant("a"),
            user([{"type": "input_audio"}, {"type": "text", "text": "go"}]),
        ]
    },
    "result with image": {
        "messages": [
            user("w"),
            assistant(tool_calls=[PARIS]),
            tool([{"type": "text", "text": "see"}, {"type": "image"}]),
        ]
    },
}
ALL = {**TEXT, **THINKING, **MEDIA}
