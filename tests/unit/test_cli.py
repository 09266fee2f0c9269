"""The command line: what it prints where, exit codes, one sentence for every mistake, nothing half-written."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from engine import __main__ as command_line
from engine.lab.records import Run
from engine.server.client import EngineClient
from engine.server.supervisor import child_environment
from tests.fake_runtime import FakeModelError, FakeRuntime, Knobs
from tests.live_server import eventually, scenario
from tests.unit.lab_runs import chunked_scenario, make_run, static_scenario


@pytest.fixture
def knobs(monkeypatch) -> Knobs:
    made = Knobs(step_s=0)
    monkeypatch.setattr(command_line, "_runtime", lambda on_progress, kernels=None: FakeRuntime(made, on_progress))
    return made


@pytest.fixture
def scenario_file(tmp_path):
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(scenario(num_requests=2)))
    return path


@pytest.fixture
def run_file(tmp_path):
    path = tmp_path / "genuine.jsonl"
    make_run(chunked_scenario()).save(path)
    return path


def call(*arguments: object):
    return CliRunner().invoke(command_line.cli, [str(argument) for argument in arguments])


def process(*arguments: object, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "engine", *map(str, arguments)]
    return subprocess.run(
        command, env=child_environment(), capture_output=True, text=True, timeout=60, check=False, **options
    )


def one_sentence(result, code: int = 2) -> str:
    """Assert that the command ended with ``code`` and one line on stderr; that line."""
    assert result.exit_code == code, (result.output, result.exception)
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 and "Traceback" not in result.stderr
    return lines[0]


def test_run_writes_the_run_and_ends_with_a_json_summary(knobs, scenario_file, tmp_path):
    out = tmp_path / "run.jsonl"
    result = call("run", scenario_file, "--out", out)
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout.strip().splitlines()[-1])
    run = Run.load(out)
    assert summary["run_id"] == run.run_id and summary["num_output_tokens"] == 6 and summary["num_steps"] == 3
    assert (summary["model"], summary["policy"], summary["out"]) == ("fake", "chunked", str(out))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.jsonl", "scenario.json"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is not JSON"),
        ("[]", "a scenario is a JSON object"),
        ("[" * 100_000, "nested too deeply"),
        ('{"requests": []}', "requests"),
        (
            '{"requests": [{"prompt": "x", "max_tokens": 0}]}',
            "requests[0].max_tokens is 0; allowed: a whole number from 1",
        ),
        (
            '{"requests": [{"prompt": "x"}], "polcy": "static"}',
            "polcy is not a field of a scenario (did you mean policy?)",
        ),
        ('{"requests": [{"prompt": "unpreparable"}]}', "requests[0].prompt cannot be prepared"),
    ],
)
def test_a_bad_scenario_is_one_sentence_and_writes_nothing(knobs, tmp_path, content, words):
    path, out = tmp_path / "bad.json", tmp_path / "run.jsonl"
    path.write_text(content)
    assert words in one_sentence(call("run", path, "--out", out))
    assert list(tmp_path.iterdir()) == [path]


def test_files_and_folders_that_are_not_there(knobs, scenario_file, run_file, tmp_path):
    out = tmp_path / "run.jsonl"
    assert "No such file" in one_sentence(call("run", tmp_path / "none.json", "--out", out))
    assert "there is no folder" in one_sentence(call("run", scenario_file, "--out", tmp_path / "none" / "run.jsonl"))
    assert "is a folder" in one_sentence(call("run", scenario_file, "--out", tmp_path))
    assert "No such file" in one_sentence(call("check", tmp_path / "none.jsonl"))
    assert "No such file" in one_sentence(call("export", tmp_path / "none.jsonl", "--format", "csv", "--out", out))
    assert "there is no folder" in one_sentence(
        call("export", run_file, "--format", "csv", "--out", tmp_path / "none" / "x.csv")
    )
    assert not out.exists()


def test_an_old_run_survives_a_run_that_fails(knobs, scenario_file, tmp_path):
    out = tmp_path / "run.jsonl"
    out.write_text("precious")
    knobs.run_error = FakeModelError("the model needs 9 GB, 4 GB are free")
    assert "needs 9 GB" in one_sentence(call("run", scenario_file, "--out", out))
    assert out.read_text() == "precious"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_is_one_sentence(knobs, scenario_file, run_file, tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise OSError(28, "No space left on device", "run.jsonl")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    assert "No space left on device" in one_sentence(call("run", scenario_file, "--out", tmp_path / "run.jsonl"))
    assert "No space left" in one_sentence(call("export", run_file, "--format", "csv", "--out", tmp_path / "a.csv"))


def test_control_c_is_quiet(knobs, scenario_file, tmp_path):
    knobs.run_error = KeyboardInterrupt()
    assert one_sentence(call("run", scenario_file, "--out", tmp_path / "run.jsonl"), 130) == "engine: stopped"
    assert not (tmp_path / "run.jsonl").exists()


def test_a_bug_keeps_its_traceback(knobs, scenario_file, tmp_path):
    knobs.run_error = KeyError("a bug")
    result = call("run", scenario_file, "--out", tmp_path / "run.jsonl")
    assert isinstance(result.exception, KeyError)


def test_check_accepts_a_genuine_run_and_names_what_is_wrong_in_a_forged_one(run_file, tmp_path):
    result = call("check", run_file)
    assert result.exit_code == 0 and result.stdout.startswith("ok: ")
    lines = run_file.read_text().splitlines()
    step = json.loads(lines[2])
    step["t_end_s"] = step["t_begin_s"] - 1
    lines[2] = json.dumps(step)
    forged = tmp_path / "forged.jsonl"
    forged.write_text("\n".join(lines))
    message = one_sentence(call("check", forged), 1)
    assert "step 1" in message
    garbled = tmp_path / "garbled.jsonl"
    garbled.write_text("not a run\n")
    assert "line 1: not JSON" in one_sentence(call("check", garbled))
    garbled.write_bytes(b"\xff\xfe\x00")
    one_sentence(call("check", garbled))


def test_export(run_file, tmp_path):
    chrome, steps, requests = tmp_path / "run.json", tmp_path / "steps.csv", tmp_path / "requests.csv"
    run = Run.load(run_file)
    assert call("export", run_file, "--format", "chrome", "--out", chrome).exit_code == 0
    assert json.loads(chrome.read_text())["traceEvents"]
    assert call("export", run_file, "--format", "csv", "--out", steps).exit_code == 0
    assert len(steps.read_text().splitlines()) == len(run.steps) + 1
    assert call("export", run_file, "--format", "csv", "--table", "requests", "--out", requests).exit_code == 0
    assert len(requests.read_text().splitlines()) == len(run.requests) + 1
    assert call("export", run_file, "--format", "pdf", "--out", chrome).exit_code == 2


@pytest.mark.parametrize(("lang", "title"), [("en", "One run:"), ("zh", "一次运行：")])
def test_export_of_a_report(run_file, tmp_path, lang, title):
    out = tmp_path / "run.html"
    assert call("export", run_file, "--format", "html", "--lang", lang, "--out", out).exit_code == 0
    assert f"<h1>{title}" in out.read_text()


def test_diff_says_who_won_and_why_and_refuses_another_workload(run_file, tmp_path):
    scenario_data = static_scenario()
    other, stranger = tmp_path / "static.jsonl", tmp_path / "stranger.jsonl"
    make_run(scenario_data).save(other)
    scenario_data["requests"] = scenario_data["requests"][:2]
    make_run(scenario_data).save(stranger)
    result = call("diff", other, run_file)
    assert result.exit_code == 0 and result.stdout.startswith("Of 4 requests"), result.output
    assert "the whole batch has to finish first" in result.stdout
    assert call("diff", other, run_file, "--lang", "zh").stdout.startswith("4 个请求中")
    assert "is in one Run only" in one_sentence(call("diff", other, stranger))


def test_roof_and_models_print_json(knobs):
    assert json.loads(call("roof").stdout) == {"read_gbps": 12.5, "disturbed": False}
    models = json.loads(call("models").stdout)
    assert any(model["name"] == "tiny-random" for model in models)


def test_a_bad_environment_is_one_sentence(monkeypatch):
    monkeypatch.setenv("TOKEN_BY_TOKEN_ENGINE_PORT", "eighty")
    assert "TOKEN_BY_TOKEN_ENGINE_PORT is 'eighty'" in one_sentence(call("serve"))


def test_the_process_says_what_it_can_do_and_imports_no_torch_for_it(run_file):
    answer = process("--help")
    assert answer.returncode == 0
    assert all(name in answer.stdout for name in ("serve", "run", "check", "export", "roof", "models"))
    assert process().returncode == 2
    assert process("nonsense").returncode == 2
    code = f"import sys\nfrom engine.__main__ import cli\ncli(['check', {str(run_file)!r}], standalone_mode=False)\n"
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=child_environment(), check=False).returncode == 0


def test_serve_on_a_taken_port_is_one_sentence():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        answer = process("serve", "--port", other.getsockname()[1])
    assert answer.returncode == 3
    assert "cannot be opened (Address already in use); choose another with --port" in answer.stderr
    assert len(answer.stderr.strip().splitlines()) == 1
    assert process("serve", "--port", 70_000).returncode == 2


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_serve_answers_before_the_model_is_loaded_and_stops_quietly(how, tmp_path):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    environment = {**child_environment(), "TOKEN_BY_TOKEN_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "engine", "serve", "--port", str(port), "--model", "tiny-random"]
    server = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        with EngineClient(f"http://127.0.0.1:{port}") as client:
            eventually(client.health)
            assert client.ready().state in ("starting", "loading", "ready", "failed")
            time.sleep(0.1)
        server.send_signal(how)
        _, errors = server.communicate(timeout=30)
    finally:
        server.kill()
    assert server.returncode == 0
    assert errors.strip().splitlines() == [f"engine at http://127.0.0.1:{port} (Ctrl-C stops it)"]


def test_import_writes_a_run_and_says_what_it_lacks(tmp_path) -> None:
    result = {
        "model_id": "m",
        "request_rate": 1,
        "ttfts": [0.1],
        "itls": [[0.02]],
        "input_lens": [3],
        "output_lens": [2],
    }
    (tmp_path / "result.json").write_text(json.dumps(result))
    done = call("import", tmp_path / "result.json", "--out", tmp_path / "run.jsonl")
    assert done.exit_code == 0 and "arrivals" in json.loads(done.stdout)["lacks"]
    assert call("check", tmp_path / "run.jsonl").exit_code == 0
    (tmp_path / "photo").write_bytes(b"\xff\xd8\xff")
    refused = call("import", tmp_path / "photo", "--out", tmp_path / "other.jsonl")
    assert refused.exit_code == 2 and not (tmp_path / "other.jsonl").exists()
