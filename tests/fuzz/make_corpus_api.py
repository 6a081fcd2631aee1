"""Writes the first inputs of fuzz_api: python3 tests/fuzz/make_corpus_api.py. One byte of switches (fuzz_api.c), then a body."""
import json
import pathlib

HERE = pathlib.Path(__file__).parent / "corpus" / "api"
COMPLETION, CHAT, TOKENIZE, DETOKENIZE, FULL, STOPS, FAILS = 0, 1, 2, 3, 4, 8, 16 | 32
USER = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {
    "type": "object", "properties": {"a": {"type": "array"}}}}}]
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":[]}'}}

INPUTS = {
    "completion": (COMPLETION, {"prompt": "abc"}),
    "completion_stream": (COMPLETION | STOPS, {
        "prompt": ["a", "b"], "n": 2, "stream": True, "stream_interval": 3,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True}}),
    "completion_echo": (COMPLETION, {
        "prompt": [[104, 105], [1]], "max_tokens": 1, "logprobs": 1, "echo": True, "seed": 1234, "temperature": 0}),
    "completion_ids": (COMPLETION | FULL, {
        "prompt": [104, 105], "prompt_logprobs": -1, "logprobs": 5, "return_token_ids": True,
        "return_tokens_as_token_ids": True}),
    "completion_sampling": (COMPLETION, {
        "prompt": "p", "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "presence_penalty": 1,
        "frequency_penalty": -1, "repetition_penalty": 1.1, "seed": -1, "stop": ["a", "b"], "stop_token_ids": [1, 2],
        "min_tokens": 1, "ignore_eos": True, "logit_bias": {"5": 1.5}, "allowed_token_ids": [1, 2],
        "bad_words": ["x", " y"], "truncate_prompt_tokens": -1, "truncation_side": "right", "priority": 0,
        "cache_salt": "s"}),
    "completion_types": (COMPLETION, {
        "prompt": "p", "max_tokens": "5", "temperature": "1e0", "echo": "yes", "n": 1.0, "stop": None}),
    "completion_wrong": (COMPLETION, {
        "prompt": {}, "max_tokens": "x", "stop": [1], "logit_bias": {"a": []}, "stream_options": []}),
    "completion_fails": (COMPLETION | FAILS, {"prompt": "abc", "stream": True}),
    "chat": (CHAT, {"messages": USER}),
    "chat_stream": (CHAT | FULL | STOPS, {
        "messages": USER, "stream": True, "logprobs": True, "top_logprobs": 3, "tools": TOOLS, "tool_choice": "auto"}),
    "chat_tools": (CHAT | FULL | STOPS, {
        "messages": [*USER, {"role": "assistant", "content": None, "reasoning": "r", "tool_calls": [CALL]},
                     {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "t"}]}],
        "tools": TOOLS, "parallel_tool_calls": False, "include_reasoning": False, "reasoning_effort": "high",
        "chat_template_kwargs": {"x": 1}, "return_prompt_text": True}),
    "chat_continue": (CHAT, {
        "messages": [*USER, {"role": "assistant", "content": "so"}], "continue_final_message": True, "echo": True,
        "max_completion_tokens": 9}),
    "chat_template": (CHAT | FULL, {
        "messages": USER, "chat_template": "{{ messages[0].content }}{% for i in range(3) %}{{ i }}{% endfor %}"}),
    "chat_refused": (CHAT, {
        "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}, "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "f"}}}),
    "tokenize": (TOKENIZE, {"prompt": "</s>é", "return_token_strs": True}),
    "tokenize_chat": (TOKENIZE, {"messages": USER, "add_generation_prompt": False}),
    "detokenize": (DETOKENIZE, {"tokens": [104, 105, 257, 195]}),
}

HERE.mkdir(parents=True, exist_ok=True)
for name, (switches, body) in INPUTS.items():
    (HERE / name).write_bytes(bytes([switches]) + json.dumps(body, ensure_ascii=False).encode())
