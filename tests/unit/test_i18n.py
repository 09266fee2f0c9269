"""Both languages have the same strings with the same placeholders, every key a page asks for exists, none is idle."""

from __future__ import annotations

import ast
import re
import string
from pathlib import Path

import pytest

from engine.lab.words import shared_texts
from pages._ui.i18n import LANGUAGES, TEXT_DIR, catalogue, match_locale, translate

PAGES = TEXT_DIR.parents[1]
SOURCES = [*sorted(PAGES.rglob("*.py")), PAGES.parent / "app.py"]
LAB = PAGES.parent / "engine" / "lab"
SHARED_SOURCES = [path for path in sorted(LAB.rglob("*.py")) if path.name != "words.py"]
CJK = re.compile(r"[\u4e00-\u9fff]")
# Words that stay as they are in Chinese: units, names, quantities of the course, badges of a format.
KEPT = re.compile(
    r"JavaScript|JSONL|HTML|CSV|GGUF|Perfetto|"
    r"MHA|GQA|MQA|token|token/s|TTFT|TPOT|KV|FLOP|TFLOP|TFLOP/s|GFLOP|GFLOP/s|FLOP/byte|FP|BF|UTC|kB|MB/s|MB|API|OpenAI|JSON|Chrome|E|n|logit|bfloat|int|GB|GB/s|ms|Markdown|Wi-Fi|GPU|CPU|GIFT|Moodle|XML|SLO|Orca|vLLM|SGLang|Sarathi|Home|End|M|K|V|A|B|C|D|s",
)


def fields(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}


def test_both_languages_have_the_same_keys() -> None:
    assert set(catalogue("en")) == set(catalogue("zh"))


@pytest.mark.parametrize("key", sorted(catalogue("en")))
def test_both_languages_use_the_same_placeholders(key: str) -> None:
    assert fields(catalogue("en")[key]) == fields(catalogue("zh")[key])


@pytest.mark.parametrize("lang", LANGUAGES)
def test_no_string_is_empty(lang: str) -> None:
    assert [key for key, text in catalogue(lang).items() if not text.strip()] == []


def test_english_has_no_chinese_and_chinese_no_english_sentence() -> None:
    assert [key for key, text in catalogue("en").items() if CJK.search(text)] == []
    english = {}
    for key, text in catalogue("zh").items():
        bare = re.sub(r"\{[a-z_0-9]*\}|`[^`]*`|:material/[a-z_]+:", " ", text)
        words = [w for w in re.findall(r"[A-Za-z][A-Za-z/]*", bare) if not KEPT.fullmatch(w)]
        if words:
            english[key] = words
    assert english == {}


def test_a_missing_key_is_an_error_and_not_an_empty_page() -> None:
    with pytest.raises(KeyError):
        translate("en", "common.there_is_no_such_text")


def test_placeholders_are_filled() -> None:
    assert translate("en", "run.tokens", done=3, total=10) == "3 of 10 tokens"


@pytest.mark.parametrize(
    ("locale", "expected"),
    [("zh-CN", "zh"), ("zh_TW", "zh"), ("en-GB", "en"), ("de-DE", None), ("", None), (None, None)],
)
def test_browser_locale(locale: str | None, expected: str | None) -> None:
    assert match_locale(locale) == expected


def _literal_keys(sources: list[Path] = SOURCES) -> set[str]:
    """Every string in the page code that reads like a key, f-strings as patterns."""
    namespaces = {key.split(".")[0] for key in catalogue("en")}
    shape = re.compile(rf"({'|'.join(namespaces)})\.[a-z_0-9]+")
    found: set[str] = set()
    for path in sources:
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        inside = {id(piece) for node in nodes if isinstance(node, ast.JoinedStr) for piece in node.values}
        for node in nodes:
            if id(node) in inside:  # a part of an f-string is a pattern, not a key
                continue
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and shape.fullmatch(node.value):
                found.add(node.value)
    return found


def _patterns(sources: list[Path] = SOURCES) -> list[re.Pattern[str]]:
    patterns = []
    for path in sources:
        source = path.read_text(encoding="utf-8")
        namespace = re.search(r'^_NS = "(\w+)"', source, re.MULTILINE)
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.JoinedStr):
                continue
            parts = []
            for piece in node.values:
                if isinstance(piece, ast.Constant):
                    parts.append(re.escape(str(piece.value)))
                elif isinstance(piece.value, ast.Name) and piece.value.id == "_NS" and namespace:
                    parts.append(namespace.group(1))
                else:
                    parts.append("[a-z_0-9]+")
            patterns.append(re.compile("".join(parts)))
    return patterns


def test_every_key_a_page_asks_for_exists() -> None:
    assert sorted(_literal_keys() - set(catalogue("en"))) == []


def test_every_string_is_used_by_a_page() -> None:
    literal, patterns = _literal_keys(), _patterns()
    own = [key for key in catalogue("en") if key not in shared_texts("en")]
    idle = [key for key in own if key not in literal and not any(p.fullmatch(key) for p in patterns)]
    assert idle == []


def test_every_shared_string_is_used_by_a_report_or_a_page() -> None:
    both = [*SOURCES, *SHARED_SOURCES]
    template = (LAB / "report" / "page.html").read_text(encoding="utf-8")
    literal = _literal_keys(both) | {f"report.{name}" for name in re.findall(r"words\.(\w+)", template)}
    patterns = [*_patterns(both), re.compile(r"report\.(badge|about)_\w+")]
    own = [key for key in shared_texts("en") if not key.startswith("player.")]
    assert [key for key in own if key not in literal and not any(p.fullmatch(key) for p in patterns)] == []


@pytest.mark.parametrize("folder", [TEXT_DIR, LAB / "text"], ids=["pages", "shared"])
def test_text_files_come_in_pairs(folder: Path) -> None:
    names = {lang: {path.name for path in (folder / lang).glob("*.yaml")} for lang in LANGUAGES}
    assert names["en"] == names["zh"]
    assert Path(TEXT_DIR / "en" / "common.yaml").exists()
