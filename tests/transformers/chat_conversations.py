"""Conversations and tools that chat templates are tried with, for chat_vectors.py."""


def turn(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, arguments, **more):
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


ASKED = [turn("user", "What is 2 + 2?"), turn("assistant", "4")]
CONVERSATIONS = {
    "question": ASKED[:1],
    "answered": ASKED,
    "system": [turn("system", "Be brief."), *ASKED],
    "three_turns": [*ASKED, turn("user", "And twice that?"), turn("assistant", "8"), turn("user", "Thanks!")],
    "long": [turn("system", "You are a poet.")] + [turn("user" if i % 2 == 0 else "assistant", f"line {i}\nof {i * i}") for i in range(12)],
    "spaces": [turn("system", "  \n padded \t"), turn("user", "\n\n  spaces around \n"), turn("assistant", "\tkept? \r\n")],
    "empty": [turn("user", ""), turn("assistant", "")],
    "unicode": [turn("user", "Grüße, 世界 🌍! ﬁ"), turn("assistant", "éà \u00a0😀\u2028x ß")],
    "quotes": [turn("user", "\"a\" 'b' \\n {{ user }} {% if %} <|im_end|> </s> &amp;"), turn("assistant", "{\"k\": [1, 2]}")],
    "thinking": [turn("user", "Why?"), turn("assistant", "<think>\nbecause\nof\n</think>\n\nThat is so."), turn("user", "Really?"),
                 turn("assistant", "<think>hm</think>Yes.")],
    "reasoning": [turn("user", "Why?"), turn("assistant", "So.", reasoning_content="it is\n"), turn("user", "ok"), turn("assistant", "fine", reasoning_content="\n\ndone")],
    "assistant_first": [turn("assistant", "Hello!"), turn("user", "Hi")],
    "user_twice": [turn("user", "one"), turn("user", "two")],
    "system_late": [turn("user", "one"), turn("system", "now be kind"), turn("assistant", "two")],
    "two_systems": [turn("system", "a"), turn("system", "b"), turn("user", "c")],
    "parts": [turn("user", [{"type": "image"}, {"type": "text", "text": " describe it "}]), turn("assistant", "a cat")],
    "tools_dict": [turn("user", "Weather in Oslo?"), turn("assistant", None, tool_calls=[call("weather", {"city": "Oslo", "days": 2, "exact": True}, id="abcdefghi")]),
                   turn("tool", "{\"celsius\": -3.5}", tool_call_id="abcdefghi", name="weather"), turn("assistant", "Cold.")],
    "tools_text": [turn("system", "Use tools."), turn("user", "Weather?"),
                   turn("assistant", "Let me see.", tool_calls=[call("weather", "{\"city\": \"Łódź\"}", id="123456789")]),
                   turn("tool", "rain", tool_call_id="123456789"), turn("assistant", "Rain."), turn("user", "ok")],
    "tools_two": [turn("user", "Both?"), turn("assistant", "", tool_calls=[call("a", {}, id="aaaaaaaaa"), call("b", {"x": [1.5, 1e20, None, {"y": "z<>&'"}]}, id="bbbbbbbbb")]),
                  turn("tool", "1", tool_call_id="aaaaaaaaa"), turn("tool", "2", tool_call_id="bbbbbbbbb"), turn("assistant", "3")],
    "developer": [turn("developer", "Answer in French."), turn("user", "Hello"), turn("assistant", "Bonjour", thinking="greet")],
    "null_keys": [turn("system", None, name=None), turn("user", "Weather?", tool_calls=None, reasoning_content=None),
                  turn("assistant", None, tool_calls=[call("weather", {"city": None}, id=None)], thinking=None), turn("tool", "rain"), turn("assistant", "Rain.", name=None)],
    "composed": [turn("user", "e\u0301 \u09df \u1100\u1161\u11a8"), turn("assistant", "n\u0303ao \u0958 A\u030a\u0327x e\u0301"), turn("user", "\ufa30"), turn("assistant", "\u0301 \u212b\u00c3o")],
    "odd_role": [turn("user", "x"), turn("narrator", "y")],
    "nothing": [],
}

TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "The weather of a city.", "parameters": {
        "type": "object", "properties": {
            "city": {"type": "string", "description": "its name"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
            "days": {"type": "integer", "default": 1},
            "hours": {"type": "array", "items": {"type": "integer"}},
            "place": {"oneOf": [{"type": "string", "description": "a name"}, {"type": "object", "properties": {"lat": {"type": "number", "nullable": True}}}], "default": "here"},
            "more": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": ["string", "null"]}}, "required": ["a"]}}},
        "required": ["city"]}, "return": {"type": "string"}}},
    {"type": "function", "function": {"name": "now", "description": "The time — ünïcode.", "parameters": {"type": "object", "properties": {}}}},
]

EXTRAS = {
    "plain": {},
    "prompt": {"add_generation_prompt": True},
    "tools": {"tools": TOOLS, "add_generation_prompt": True},
    "variables": {"enable_thinking": False, "add_generation_prompt": True, "date_string": "26 Jul 2024", "reasoning_effort": "high",
                  "builtin_tools": ["shell", "weather", "search"], "documents": [{"title": "", "text": "the tree"}, {"text": "EEL"}]},
}
