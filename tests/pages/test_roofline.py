"""The roofline page: a study of nine parts, points as they come, the roof of this and of other devices, the claims."""

from __future__ import annotations

import pytest
from streamlit.testing.v1 import AppTest

from engine.lab import catalogue
from engine.lab.records import DeviceInfo
from engine.lab.roof import Ceilings, Rate
from lessons.roofline.scenarios import ROLES
from pages._ui import ceilings_card
from pages._ui.i18n import translate
from pages._ui.roofline_views import OFFERED
from tests.pages.fake_client import FakeClient
from tests.pages.test_lessons import LEARNER, finish, predict, start
from tests.pages.test_smoke import all_text

PAGE = "p_roofline.py"


def run_study(lab, **query: str) -> AppTest:
    return finish(start(predict(lab(PAGE, lang="en", **query), 30), "roofline"), most=60)


def test_the_study_runs_all_parts_and_settles_the_prediction(lab, client: FakeClient, store) -> None:
    at = run_study(lab)
    assert not at.exception and not at.error
    assert [s.name for s in client.submitted] == [f"roofline/{role}" for role in ROLES]
    assert set(store.latest_runs(LEARNER, "roofline")) == set(ROLES)
    settled = store.predictions(LEARNER, "roofline")
    assert {p.prediction_id for p in settled} == {"cross_tokens", "batch_gain"}
    assert all(p.answer is not None for p in settled)
    assert translate("en", "quiz.from_your_run") in all_text(at)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_figures_have_names_tables_and_badges(studied, lang: str) -> None:
    at = studied(PAGE, "roofline", 30, lang=lang)
    assert not at.exception
    assert len(at.get("plotly_chart")) == 3
    assert all(len(chart.proto.alt) > 20 for chart in at.get("plotly_chart"))
    assert len(at.dataframe) == 3
    for kind in ("measured", "modelled", "spec"):
        assert f"{translate(lang, f'common.badge_{kind}')}]" in all_text(at)
    runs = at.dataframe[0].value[translate(lang, "study.column_run")]
    assert len(set(runs)) == len(ROLES)
    for claim in ("C4", "C5", "C6"):
        assert claim in all_text(at)


def test_points_appear_while_the_study_goes_on(lab, client: FakeClient) -> None:
    client.num_running = 2
    at = start(predict(lab(PAGE, lang="en"), 30), "roofline")
    seen = []
    for _ in range(60):
        if not any(str(b.key).startswith("stop_") for b in at.button):
            break
        assert len(at.dataframe) == len(at.get("plotly_chart")) <= 1, "the other pictures wait for the end"
        seen.append(len(at.dataframe[0].value) if at.dataframe else 0)
        at.run()
    assert sorted(seen) == seen and set(seen) >= set(range(8))
    assert translate("en", "study.part", index=1, count=9, name="Prefill, 8 tokens") not in all_text(at)


def test_stop_keeps_what_is_finished(lab, client: FakeClient, store) -> None:
    client.num_running = 2
    at = start(predict(lab(PAGE, lang="en"), 30), "roofline")
    while len(client.submitted) < 3:
        at.run()
    at.button(key="stop_roofline").click().run()
    assert translate("en", "run.stopped") in [i.value for i in at.info]
    assert set(store.latest_runs(LEARNER, "roofline")) == {"prefill_8", "prefill_32"}
    assert translate("en", "roofline.no_run") in [i.value for i in at.info]
    assert store.predictions(LEARNER, "roofline")[0].run_id is None


def test_the_number_format_belongs_to_the_prediction_and_the_link(lab, client: FakeClient) -> None:
    at = predict(lab(PAGE, lang="en", rf_dtype="bfloat16"), 30)
    start(at, "roofline")
    assert client.submitted[0].dtype == "bfloat16"
    at = predict(lab(PAGE, lang="en", rf_dtype="nonsense"), 30)
    assert [w.value for w in at.warning if "rf_dtype" in w.value]


@pytest.mark.parametrize("device", ["h200", "apple-m1", "t4"])
def test_another_device_is_drawn_with_what_its_maker_states(studied, device: str) -> None:
    at = studied(PAGE, "roofline", 30, rf_device=device)
    assert not at.exception
    assert translate("en", "roofline.elsewhere", device=catalogue.device(device).name) in all_text(at)


def test_a_device_of_the_catalogue_has_its_datasheet_beside_the_measurement(lab, client: FakeClient, store) -> None:
    at = start(predict(lab(PAGE, lang="en"), 30), "roofline")
    while any(str(b.key).startswith("stop_") for b in at.button):
        for run in client.runs.values():
            run.header.device.name, run.header.device.memory_bytes = "NVIDIA H200", 141 * 10**9
        at.run()
    assert not at.exception
    assert translate("en", "roofline.roof_spec", device="NVIDIA H200") in all_text(at).replace("\\", "")
    assert any("4,800 GB/s" in str(cell) for table in at.table for cell in table.value.to_numpy().ravel())


def test_without_an_engine_the_stored_study_is_shown(lab, studied, client: FakeClient) -> None:
    studied(PAGE, "roofline", 30)
    client.down = True
    at = lab(PAGE, lang="en")
    assert not at.exception
    assert len(at.get("plotly_chart")) == 3
    assert translate("en", "ceilings.from_run") in all_text(at)


# ------------------------------------------------------------------------------------------------- ceilings
def ceilings(**changes) -> dict:
    rate = Rate(value=20, unit="GB/s", low=19.9, high=20.1, median=20, count=50, noisy=False, how="sum")
    found = Ceilings(
        device="test bench", device_type="cpu", threads=2, torch_version="2", measured_utc="2026-01-02T03:04:05+00:00",
        seconds=16.5, read=rate, matmul={"float32": rate.model_copy(update={"value": 0.1, "unit": "TFLOP/s"})},
    )  # fmt: skip
    return found.model_copy(update=changes).model_dump(mode="json")


def test_measured_ceilings_say_when_and_whether_they_were_disturbed(
    lab, studied, client: FakeClient, monkeypatch
) -> None:
    studied(PAGE, "roofline", 30)
    report = FakeClient.device(client)
    name = next(iter(client.runs.values())).header.device.name
    monkeypatch.setattr(client, "device", lambda: {**report, "ceilings": ceilings(device=name, others_share=0.5)})
    at = lab(PAGE, lang="en")
    assert "2026-01-02 03:04 UTC" in all_text(at)
    assert translate("en", "ceilings.disturbed") in [w.value for w in at.warning]


@pytest.mark.parametrize(
    ("name", "gigabytes", "found"),
    [
        ("NVIDIA H200", 141, "h200"),
        ("NVIDIA A100-SXM4-80GB", 85, "a100-80"),
        ("NVIDIA A100-SXM4-40GB", 42, "a100-40"),
        ("NVIDIA H100 PCIe", 80, "h100-pcie"),
        ("NVIDIA H100 80GB HBM3", 80, "h100"),
        ("NVIDIA GeForce RTX 5060 Ti", 16, "rtx-5060-ti"),
        ("NVIDIA GeForce RTX 5090", 32, "rtx-5090"),
        ("NVIDIA L40S", 48, "l40s"),
        ("Tesla T4", 15, "t4"),
        ("NVIDIA A100-PCIE-80GB", 85, None),
        ("AMD EPYC", 16, None),
        ("NVIDIA L40", 48, None),
        ("", 1, None),
    ],
)
def test_a_device_finds_its_datasheet(name: str, gigabytes: int, found: str | None) -> None:
    device = ceilings_card.datasheet_of(name, gigabytes * 10**9)
    assert (device.id if device else None) == found


def test_a_report_that_is_not_complete_is_no_report() -> None:
    assert ceilings_card.measured(None) is None
    assert ceilings_card.measured({"ceilings": {"read": {"value": 1}}}) is None
    assert ceilings_card.measured({"ceilings": ceilings()}).read_gbps == 20
    info = DeviceInfo(name="x", type="cpu", threads=1, memory_bytes=1)
    assert info.read_gbps is None


def test_every_offered_device_has_a_roof() -> None:
    assert len(OFFERED) > 10
    for device_id in OFFERED:
        device = catalogue.device(device_id)
        assert device.bandwidth_gbps and (device.rate("float32", "vector") or device.rate("bfloat16"))
