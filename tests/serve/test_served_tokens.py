"""Texts, prompts and conversations to token ids and back, also as vLLM's clients ask for them."""

import httpx
from serving import CHAT, CONTEXT, WEATHER, ScriptedEngine, scripted_server

from redraft.llm import LLM


def test_tokenize_and_back(http: httpx.Client, llm: LLM) -> None:
    text = "naïve 🙂 <|turn>"
    tokens = http.post("/tokenize", json={"text": text}).json()
    ids = llm.tokenizer.encode(text, special=False)
    assert tokens == {"tokens": ids, "count": len(ids), "max_model_len": CONTEXT}
    back = http.post("/detokenize", json={"tokens": tokens["tokens"], "pieces": True}).json()
    assert back["text"] == text
    assert "".join(back["pieces"]) == text
    half = http.post("/detokenize", json={"tokens": llm.tokenizer.encode("🙂")[:1], "pieces": True}).json()
    assert (half["text"], half["pieces"]) == ("\ufffd", ["\ufffd"])
    several = http.post("/detokenize", json={"tokens": [tokens["tokens"], []]}).json()
    assert several == {"text": [text, ""]}
    chat = http.post("/tokenize", json={"messages": [{"role": "user", "content": "Hello!"}]}).json()
    assert chat["tokens"] == llm.encode_chat([{"role": "user", "content": "Hello!"}])
    assert http.post("/tokenize", json={"text": text, "model": "random"}).json() == tokens
    assert http.post("/detokenize", json={"tokens": ids, "model": "random"}).json() == {"text": text, "prompt": text}
    assert http.post("/tokenize", json={"text": text, "model": "nonesuch"}).status_code == 404
    assert http.post("/detokenize", json={"tokens": [99_999]}).status_code == 400
    assert http.post("/tokenize", json={"text": "a", "messages": []}).status_code == 400


def test_vllms_clients_can_tokenize(http: httpx.Client, llm: LLM) -> None:
    alone = llm.tokenizer.encode("Hello!", special=False)
    asked = {"model": "random", "prompt": "Hello!"}
    strings = [llm.tokenizer.token(id) for id in [llm.tokenizer.bos_id, *alone]]
    told = http.post("/tokenize", json=asked | {"add_special_tokens": True, "return_token_strs": True}).json()
    assert told == {
        "tokens": llm.prompt_ids("Hello!", raw=True), "count": len(strings), "max_model_len": CONTEXT,
        "token_strs": strings,
    }  # fmt: skip
    assert http.post("/tokenize", json=asked).json()["tokens"] == told["tokens"]
    assert http.post("/tokenize", json=asked | {"add_special_tokens": False}).json()["tokens"] == alone
    empty = http.post("/tokenize", json={"prompt": ""}).json()
    assert empty["tokens"] == [llm.tokenizer.bos_id]


def test_a_conversation_is_tokenized_as_it_is_answered(http: httpx.Client, llm: LLM) -> None:
    said = [{"role": "user", "content": "Hello!"}]
    asked = {"model": "random", "messages": said, "add_special_tokens": False, "add_generation_prompt": True}
    told = http.post("/tokenize", json=asked | {"tools": [WEATHER], "continue_final_message": False}).json()
    assert told["tokens"] == llm.encode_chat(said, tools=[WEATHER])
    answered = http.post("/v1/chat/completions", json=CHAT | {"messages": said, "tools": [WEATHER]}).json()
    assert answered["usage"]["prompt_tokens"] == told["count"] > http.post("/tokenize", json=asked).json()["count"]
    begun = [*said, {"role": "assistant", "content": "Hi"}]
    ending = {"add_generation_prompt": False, "continue_final_message": True}
    told = http.post("/tokenize", json=asked | {"messages": begun} | ending).json()
    assert told["tokens"] == llm.encode_chat(begun)


def test_the_tokens_of_what_is_too_long_can_be_counted(llm: LLM) -> None:
    messages = [{"role": "user", "content": "word " * 100}]
    count = len(llm.encode_chat(messages))
    with scripted_server(llm, ScriptedEngine(llm, lambda request: ["x"]), max_prompt=40) as url:
        body = {"model": "other", "messages": messages}
        assert httpx.post(f"{url}/v1/messages", json=body | {"max_tokens": 16}).status_code == 400
        assert httpx.post(f"{url}/v1/messages/count_tokens", json=body).json() == {"input_tokens": count}
        assert httpx.post(f"{url}/tokenize", json=body).json()["count"] == count
    for most, status in ((count, 200), (count - 1, 400)):
        with scripted_server(llm, ScriptedEngine(llm, lambda request: ["x"]), max_prompt=most) as url:
            assert httpx.post(f"{url}/v1/messages", json=body | {"max_tokens": 16}).status_code == status
