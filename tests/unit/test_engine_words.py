"""What the engine says in English stands in Chinese on a Chinese page, and the list follows the engine's source."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from engine.lab.check_rules import CheckError
from engine.lab.scenario import Scenario, ScenarioError
from pages._ui.engine_words import said
from pages._ui.i18n import catalogue

ENGINE = Path(__file__).resolve().parents[2] / "engine"
FOREIGN = (
    r"say_json_|allowed_(?!range)|options_|(say|wanted|allowed)_other|wanted_choice"  # pydantic's, json's, bare parts
)
ORIGINAL = "引擎的原话"
ONE = {"prompt": "x"}


def template(text: str) -> str:
    return re.sub(r"\{[a-z_]*\}", "{}", text)


def test_the_engine_still_says_every_sentence_of_the_list() -> None:
    said_there = set()
    for path in ENGINE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                said_there.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                said_there.add("".join(str(p.value) if isinstance(p, ast.Constant) else "{}" for p in node.values))
    listed = {k.removeprefix("engine_says."): v for k, v in catalogue("en").items() if k.startswith("engine_says.")}
    gone = [key for key, text in listed.items() if not re.match(FOREIGN, key) and template(text) not in said_there]
    assert gone == []


BAD = [
    ({"requests": []}, "requests", "1"),
    ({}, "requests", "缺少"),
    ({"requests": [ONE], "limits": {"max_requests": 999}}, "999", "1", "256", "整数"),
    ({"requests": [{**ONE, "top_p": 0}]}, "top\\_p", "大于 0", "1"),
    ({"requests": [{**ONE, "max_tokens": "many"}]}, "many", "1", "8192"),
    ({"requests": [{**ONE, "arrival_s": -1}]}, "-1", "0", "600"),
    ({"requests": [{**ONE, "chat": "perhaps"}]}, "perhaps", "true"),
    ({"requests": [{"prompt": 3}]}, "3", "文本"),
    ({"requests": [{**ONE, "request_id": "a b"}]}, "a b", "字母"),
    ({"requests": [{**ONE, "request_id": ""}]}, "1"),
    ({"requests": [ONE], "policy": "fastest"}, "fastest", "static", " 或 "),
    ({"requests": [ONE], "limits": 3}, "limits", "3"),
    ({"requests": 3}, "requests", "列表"),
    ({"requests": [ONE], "polcy": "static"}, "polcy", "是不是想写 policy"),
    ({"requests": [{}]}, "只能给一个"),
    ({"requests": [{"prompt": " "}]}, "提示词是空的"),
    ({"requests": [{**ONE, "follows": "r0"}]}, "r0", "前面没有"),
    ({"requests": [{**ONE, "request_id": "a"}, {**ONE, "request_id": "a"}]}, "a", "两次"),
    ({"requests": [{"prompt_token_ids": [1], "chat": True}]}, "prompt_token_ids"),
    ({"requests": [{"prompt_token_ids": [-1]}]}, "0"),
    ({"requests": [{**ONE, "stop": [""]}]}, "停止字符串"),
    ({"requests": [ONE, {"follows": "r0", "chat": True}]}, "chat"),
    ({"requests": [ONE], "limits": {"kv_cache": "none", "prefix_cache": "hash"}}, "前缀缓存"),
    ({"requests": [ONE], "policy": "static", "limits": {"kv_cache": "none"}}, "静态批处理"),
    ({"requests": [ONE], "policy": "static", "speculation": {}}, "静态批处理"),
    ({"requests": [ONE], "speculation": {}, "kv_dtype": "int4"}, "int4"),
    ({"requests": [ONE], "speculation": {"ngram": 99}}, "99", "1", "8"),
    ({"requests": [ONE], "probes": ["quantization"]}, "weights"),
    ({"requests": [ONE], "ring": {}, "kv_dtype": "int8"}, "ring", "不设 kv\\_dtype"),
    ({"requests": [ONE], "disaggregated": {}, "policy": "paged"}, "policy 为 chunked"),
    ({"requests": [ONE], "server": {"url": "nowhere"}}, "nowhere", "http://127.0.0.1:8000"),
    ({"requests": [ONE], "server": {"url": "http://a"}, "weights": "int8"}, "weights"),
    ([], "list", "JSON"),
]


@pytest.mark.parametrize(("data", "parts"), [(data, parts) for data, *parts in BAD], ids=range(len(BAD)))
def test_what_is_wrong_with_a_scenario_is_said_in_chinese_with_value_and_remedy(data: object, parts: list[str]) -> None:
    with pytest.raises(ScenarioError) as caught:
        Scenario.parse(data)
    text = said(str(caught.value), "zh")
    assert ORIGINAL not in text and [part for part in parts if part not in text] == [], text
    plain = re.sub(r"`[^`]*`", "", text)
    assert not re.search(r"[a-z]{3,} [a-z]{2,} [a-z]{2,}", plain), f"an English phrase is left: {text}"


def test_what_only_the_engine_knows_is_said_in_chinese() -> None:
    text = said(
        "request r0 needs 90 positions (50 of prompt and max_tokens 40) but all 2 KV blocks of 16 together hold 32; "
        "raise limits.num_blocks to 6 or shorten the request",
        "zh",
    )
    assert ORIGINAL not in text and "请求 r0" in text and "提高到 6" in text


def test_a_broken_rule_is_said_in_chinese_and_its_details_as_the_engine_says_them() -> None:
    text = said(str(CheckError("step 3", "token_budget", "it runs 300 tokens")), "zh")
    assert "第 3 步" in text and "token\\_budget" in text and f"{ORIGINAL}（英文）：it runs 300 tokens" in text


def test_the_mistakes_of_a_json_text_are_said_in_chinese() -> None:
    for broken in ("{", '{"a" 1}', '{"a": }', '{"a": 1} x', '{"a": "x', '{"a": "\n"}', '"\\x"', "[1 2]"):
        with pytest.raises(json.JSONDecodeError) as caught:
            json.loads(broken)
        assert ORIGINAL not in said(caught.value.msg, "zh"), broken


def test_a_sentence_nobody_listed_is_not_lost_and_markdown_in_it_is_no_markdown() -> None:
    assert said("all *stars* fell", "zh") == f"{ORIGINAL}（英文）：all \\*stars\\* fell"
    assert said("all *stars* fell", "en") == "all \\*stars\\* fell"
