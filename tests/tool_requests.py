"""What every drawn request must fulfil, whichever table or generator its tool comes from."""


def strings_of(value):
    """The strings in an argument."""
    if isinstance(value, str):
        return [value]
    return [text for item in value for text in strings_of(item)] if isinstance(value, list) else []


def check_names(tool, request):
    """The call has all required arguments and only declared ones; nothing of the grammar is left in the request."""
    schema = tool.declaration["function"]["parameters"]
    assert set(schema.get("required", ())) <= request.arguments.keys() <= schema["properties"].keys()
    assert "{" not in request.text.replace("{}", "")
    assert "[" not in request.text


def check_values(request):
    """Every string argument stands in the request."""
    for text in (t for argument in request.arguments.values() for t in strings_of(argument)):
        assert text.replace("_", " ").lower() in request.text.replace("_", " ").lower()
