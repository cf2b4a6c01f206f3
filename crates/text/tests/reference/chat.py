"""What transformers makes of conversations, for tests/it/chat_template.rs.

Made with Python 3.11, tokenizers 0.23.3, transformers 5.23.0, jinja2 3.1.6:

    python crates/text/tests/reference/chat.py

It renders the templates in chat, which were written for this test and have the constructs of published ones, and writes
chat.json beside itself: for each template and conversation the text, the tokens and the mask of the assistant's tokens,
or that the template raised an error.

    python crates/text/tests/reference/chat.py FOLDER

renders each .jinja file of a folder instead, such as templates of published models, and writes FOLDER/chat.json. Then

    FULMEN_CHAT_TEMPLATES=FOLDER cargo test -p fulmen-text --test it -- --ignored published_templates

compares.
"""

import datetime
import json
import pathlib
import sys

from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

HERE = pathlib.Path(__file__).parent
NOW = datetime.datetime(2024, 7, 26, 15, 4, 5)

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_temperature",
        "description": "The temperature at a <place> & a \"time\".",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "The place,\nsuch as Zürich"},
                "days": {"type": "array", "items": {"type": "integer"}},
                "unit": {"type": ["string", "number"], "enum": ["celsius", "kelvin"]},
                "scale": {"type": "number", "default": 1e-07, "minimum": -2.5, "maximum": 1e16},
            },
            "required": ["place"],
        },
        "return": {"type": "number"},
    },
}
USER = {"role": "user", "content": "  Please say how late it is # now\n"}
ANSWER = {"role": "assistant", "content": "It is noon. \n"}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{
        "type": "function",
        "function": {"name": "get_temperature", "arguments": {"place": "Zürich <1>", "days": [1, 2], "exact": True}},
    }],
}

# The conversation, and the arguments of `apply_chat_template`.
CASES = [
    ([USER], {"add_generation_prompt": True}),
    ([USER, ANSWER], {}),
    ([{"role": "system", "content": " You are a clock. "}, USER, ANSWER, {"role": "user", "content": "Danke, 再见 👋"},
      {"role": "assistant", "content": "Tschüß!"}], {}),
    ([USER, ANSWER], {"continue_final_message": True}),
    ([USER, {"role": "assistant", "content": "It is"}], {"continue_final_message": True}),
    ([USER, {"role": "assistant", "content": "<think>\nA clock?\n</think>\n\nNo."},
      {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because.", "reasoning": "Hm."}], {}),
    ([{"role": "user", "content": "How warm is it?"}, CALL, {"role": "tool", "content": "21.5"},
      {"role": "tool", "content": "22"}, {"role": "assistant", "content": "It is warm."}],
     {"tools": [WEATHER]}),
    ([USER], {"add_generation_prompt": True, "tools": [WEATHER], "enable_thinking": False}),
    ([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " What is it? "}]},
      {"role": "assistant", "content": [{"type": "text", "text": "A cat"}]}], {}),
    ([USER, USER], {}),
    ([{"role": "skip", "content": "a"}, USER, {"role": "stop", "content": "b"}, ANSWER], {}),
    ([USER], {"documents": [{"title": "", "text": "one\ntwo"}, {"title": "the END", "text": "three"}],
              "settings": {"level": 3, "names": ["a"]}}),
    ([{"role": "assistant", "content": "First."}, USER], {"date_string": "1 May"}),
]


class Clock(datetime.datetime):
    @classmethod
    def now(cls):
        return NOW


def case(tokenizer, source, chat, arguments):
    found = {"chat": json.dumps(chat, ensure_ascii=False), "arguments": json.dumps(arguments, ensure_ascii=False)}
    try:
        found["text"] = tokenizer.apply_chat_template(chat, chat_template=source, tokenize=False, **arguments)
    except Exception as error:
        return found | {"error": str(error)}
    if "continue_final_message" not in arguments:
        tokens = tokenizer.apply_chat_template(
            chat, chat_template=source, return_assistant_tokens_mask=True, return_dict=True, **arguments
        )
        found["ids"] = tokens["input_ids"]
        found["assistant_masks"] = tokens["assistant_masks"]
    return found


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "chat"
    out = folder / "chat.json" if len(sys.argv) > 1 else HERE / "chat.json"
    chat_template_utils.datetime = Clock
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(HERE / "text_bpe.json"), bos_token="<|endoftext|>", eos_token="<|endoftext|>"
    )
    templates = {}
    for file in sorted(folder.glob("*.jinja")):
        source = file.read_text(encoding="utf-8")
        templates[file.name] = [case(tokenizer, source, *arguments) for arguments in CASES]
    lines = [
        f'"{name}": [\n' + ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases) + "\n]"
        for name, cases in templates.items()
    ]
    out.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    cases = [case for cases in templates.values() for case in cases]
    print(f"{len(templates)} templates, {len(cases)} cases, {sum('error' in case for case in cases)} errors")


if __name__ == "__main__":
    main()
