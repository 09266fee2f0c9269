"""The learner database: what is kept, what is idempotent, and that nothing a disk does can stop the lab."""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import event, inspect

from engine.lab.records import (
    Blocks,
    DeviceInfo,
    Header,
    ModelInfo,
    Output,
    Queues,
    RequestRecord,
    Run,
    Scheduled,
    StepRecord,
)
from lessons import store as store_module
from lessons.database import Database
from lessons.store import KEEP_RUNS, Store, StoreError
from lessons.tables import ensure_version, metadata


def small_run(number: int = 0, policy: str = "chunked", name: str = "", **scenario) -> Run:
    """A Run of one request with one token, good enough to be stored."""
    header = Header(
        run_id=f"run-{number:012x}",
        created_utc="2026-01-01T00:00:00Z",
        scenario={"policy": policy, "name": name, **scenario},
        device=DeviceInfo(name="cpu", type="cpu", threads=2, memory_bytes=1),
        model=ModelInfo(
            name="tiny",
            source="random",
            architecture="llama",
            num_layers=1,
            hidden_size=8,
            num_heads=1,
            num_kv_heads=1,
            head_dim=8,
            vocab_size=16,
            num_parameters=100,
            weight_bytes=400,
        ),
        dtype="float32",
        kv_dtype="float32",
        block_size=16,
        num_blocks=8,
        versions={},
    )
    step = StepRecord(
        step=0,
        t_begin_s=0.0,
        t_end_s=0.1,
        policy=policy,
        backend="eager",
        scheduled=[Scheduled(request_id="r0", start=0, num_tokens=4, phase="prefill")],
        queues=Queues(waiting=0, running=0, finished=1),
        blocks=Blocks(total=8, free=8, cached=0, in_use=0),
        outputs=[Output(request_id="r0", token_id=3, finish_reason="length")],
    )
    request = RequestRecord(
        request_id="r0",
        num_prompt_tokens=4,
        num_output_tokens=1,
        arrival_s=0.0,
        first_scheduled_s=0.0,
        first_token_s=0.1,
        completion_s=0.1,
        num_preemptions=0,
        num_cached_tokens=0,
        finish_reason="length",
        output_token_ids=[3],
    )
    return Run(header=header, steps=[step], requests=[request])


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.fixture(params=["file", "memory"])
def store(request, tmp_path):
    store = Store("sqlite://" if request.param == "memory" else url_of(tmp_path / "sub" / "lab.sqlite3"))
    assert store.notice is None
    assert store.in_memory == (request.param == "memory")
    yield store
    store.close()


# ------------------------------------------------------------------ what is kept


def test_parts_of_an_experiment_are_found_again_by_their_role(store):
    ann = store.learner("ann")
    for number, role in enumerate(("serial", "parallel", "serial")):
        run = small_run(number, name=f"{number}", preset=f"{number}")
        store.save_run(run, {}, "any_lesson", ann, role=role, experiment="one")
    found = store.latest_runs(ann, "any_lesson")
    assert {role: run.header.scenario["name"] for role, run in found.items()} == {"serial": "2", "parallel": "1"}
    store.save_run(small_run(9), {}, "any_lesson", ann, role="parallel", experiment="two")
    assert set(store.latest_runs(ann, "any_lesson")) == {"parallel"}


def test_a_locked_prediction_never_changes(store):
    ann = store.learner("ann")
    assert store.save_prediction(ann, "batching", "idle", 12).value == 12
    assert store.save_prediction(ann, "batching", "idle", 70).value == 12
    assert store.prediction(ann, "batching", "idle").value == 12
    assert store.save_prediction(ann, "batching", "idle", 70, attempt=2).value == 70
    assert store.prediction(ann, "batching", "idle").attempt == 2, "without an attempt the latest counts"
    assert store.prediction(ann, "batching", "idle", attempt=1).value == 12
    assert store.prediction(ann, "batching", "other") is None
    assert store.prediction(store.learner("bob"), "batching", "idle") is None


def test_the_first_run_settles_a_prediction(store):
    ann = store.learner("ann")
    store.save_prediction(ann, "batching", "where", "decode")
    store.settle_prediction(ann, "batching", "where", 1, "run-1", "prefill")
    store.settle_prediction(ann, "batching", "where", 1, "run-2", "decode")
    locked = store.prediction(ann, "batching", "where")
    assert (locked.value, locked.run_id, locked.answer) == ("decode", "run-1", "prefill")


def test_answers_are_appended_and_a_repeated_submit_is_harmless(store):
    ann = store.learner("ann")
    assert store.save_answer(ann, "batching", "q1", ["aa", "bb"], 0.5) == 1
    assert store.save_answer(ann, "batching", "q1", ["aa"], 1.0) == 2
    assert store.save_answer(ann, "batching", "q1", ["zz"], 0.0, attempt=2) == 2
    assert store.save_answer(ann, "prefill_decode", "q1", 3.5, 1.0) == 1
    kept = store.answers(ann, "batching")
    assert [(a.attempt, a.value, a.score) for a in kept] == [(1, ["aa", "bb"], 0.5), (2, ["aa"], 1.0)]
    assert len(store.answers(ann)) == 3
    with pytest.raises(StoreError, match="allowed: up to"):
        store.save_answer(ann, "batching", "q1", "x" * 5_000, 0.0)


def test_runs_come_back_whole_with_their_texts(store):
    ann = store.learner("ann")
    run = small_run(7)
    store.save_run(run, {"r0": "你好 🙂"}, "prefill_decode", ann, pieces={"r0": ["你", "好"]})
    store.save_run(run, {"r0": "changed"}, "prefill_decode", ann)
    assert store.run(run.run_id) == run
    assert store.texts(run.run_id).texts == {"r0": "你好 🙂"}
    assert store.texts(run.run_id).pieces == {"r0": ["你", "好"]}
    assert store.run("run-unknown") is None
    assert store.texts("run-unknown").texts == {}
    assert store.latest_runs(ann, "prefill_decode") == {"run": run}
    assert store.latest_runs(ann, "batching") == {}


def test_only_runs_of_the_same_workload_are_set_side_by_side(store):
    ann = store.learner("ann")
    for number, policy, preset in [(1, "static", "chat"), (2, "chunked", "chat"), (3, "static", "abcd")]:
        store.save_run(small_run(number, policy, name=f"{preset}/{policy}", preset=preset), {}, "batching", ann)
    assert {k: r.run_id for k, r in store.latest_runs(ann, "batching").items()} == {"static": "run-000000000003"}
    store.save_run(small_run(4, "chunked", preset="abcd"), {}, "batching", ann)
    latest = store.latest_runs(ann, "batching")
    assert {k: int(r.run_id[4:], 16) for k, r in latest.items()} == {"static": 3, "chunked": 4}


def test_growth_is_bounded_per_learner(store):
    ann, bob = store.learner("ann"), store.learner("bob")
    store.save_run(small_run(10_000), {}, "prefill_decode", bob)
    for number in range(KEEP_RUNS + 5):
        store.save_run(small_run(number), {}, "prefill_decode", ann)
    assert store.progress(ann)["prefill_decode"].num_runs == KEEP_RUNS
    assert store.run(small_run(4).run_id) is None
    assert store.run(small_run(5).run_id) is not None
    assert store.run(small_run(10_000).run_id) is not None, "another learner's runs are not counted"


def test_events_are_bounded(store, monkeypatch):
    monkeypatch.setattr(store_module, "KEEP_EVENTS", 5)
    ann = store.learner("ann")
    for index in range(9):
        store.log_event(ann, "opened", "batching", {"index": index})
    kept = store._db.read(lambda c: c.exec_driver_sql("SELECT data FROM event ORDER BY id").scalars().all())
    assert kept == [f'{{"index": {i}}}' for i in range(4, 9)]


def test_progress_counts_items_not_attempts(store):
    ann = store.learner("ann")
    assert store.progress(ann) == {}
    for score in (0.0, 1.0, 0.5):
        store.save_answer(ann, "batching", "q1", ["a"], score)
    store.save_answer(ann, "batching", "q2", ["a"], 0.5)
    store.save_prediction(ann, "batching", "p", 1)
    store.save_prediction(ann, "batching", "p", 2, attempt=2)
    progress = store.progress(ann)["batching"]
    assert (progress.num_predictions, progress.num_runs) == (1, 0)
    assert (progress.num_items_answered, progress.num_items_correct) == (2, 1)
    assert progress.last_utc


def test_preferences(store):
    ann = store.learner("ann")
    assert store.preference(ann, "lang") is None
    store.set_preference(ann, "lang", "zh")
    store.set_preference(ann, "lang", "en")
    assert store.preference(ann, "lang") == "en"


def test_reset_deletes_every_row_of_one_learner_and_of_no_other(store):
    ann, bob = store.learner("ann"), store.learner("bob")
    for index, who in enumerate((ann, bob)):
        store.save_prediction(who, "batching", "p", 1)
        store.save_answer(who, "batching", "q", ["a"], 1.0)
        store.save_run(small_run(index), {}, "prefill_decode", who)
        store.set_preference(who, "lang", "zh")
        store.log_event(who, "opened", "batching")
    before = store.progress(bob)
    store.reset(ann)
    store.reset(ann)
    for table in metadata.sorted_tables:
        column = table.c.get("learner", table.c.get("id"))
        if table.name != "meta":
            query = table.select().where(column == "ann")
            assert store._db.read(lambda c, q=query: c.execute(q).all()) == [], table.name
    assert store.progress(bob) == before
    assert store.save_answer(ann, "batching", "q", ["a"], 1.0) == 1, "a deleted learner may begin again"


@pytest.mark.parametrize("sid", ["", "a b", "x" * 65, "../etc", "名", "a\n", None])
def test_a_strange_learner_id_is_refused(store, sid):
    with pytest.raises(StoreError, match="start a new session"):
        store.learner(sid)


# ------------------------------------------------------------------ restart, threads


def test_everything_survives_a_restart(tmp_path):
    path = tmp_path / "lab.sqlite3"
    first = Store(url_of(path))
    ann = first.learner("ann")
    first.save_prediction(ann, "batching", "p", 4.5)
    first.save_answer(ann, "batching", "q", ["a"], 1.0)
    first.save_run(small_run(1, "static"), {"r0": "hi"}, "batching", ann)
    progress = first.progress(ann)
    first.close()
    second = Store(url_of(path))
    assert second.notice is None
    assert second.learner("ann") == ann
    assert second.prediction(ann, "batching", "p").value == 4.5
    assert second.progress(ann) == progress
    assert second.latest_runs(ann, "batching")["static"] == small_run(1, "static")


def test_nothing_is_lost_without_a_clean_close(tmp_path):
    first = Store(url_of(tmp_path / "lab.sqlite3"))
    first.save_answer(first.learner("ann"), "batching", "q", ["a"], 1.0)
    second = Store(url_of(tmp_path / "lab.sqlite3"))  # the first still holds its connections, as after a crash
    assert len(second.answers("ann")) == 1
    second.save_answer("ann", "batching", "q", ["a"], 1.0)
    assert len(first.answers("ann")) == 2


def test_twenty_threads_lose_nothing(store):
    barrier = threading.Barrier(20)

    def learner_works(index: int) -> list[int]:
        sid = store.learner(f"learner-{index % 10}")  # two threads share each learner, as two browser tabs do
        barrier.wait()
        numbers = []
        for round_ in range(8):
            numbers.append(store.save_answer(sid, "batching", f"q{round_ % 2}", ["a"], 1.0))
            store.save_prediction(sid, "batching", "p", index)
            assert store.answers(sid, "batching")
            store.save_run(small_run(index * 100 + round_), {}, "prefill_decode", sid)
            assert store.latest_runs(sid, "prefill_decode")
        return numbers

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(learner_works, range(20)))
    assert store.notice is None
    for index in range(10):
        answers = store.answers(f"learner-{index}", "batching")
        for item in ("q0", "q1"):
            assert [a.attempt for a in answers if a.item_id == item] == list(range(1, 9))
        locked = store.prediction(f"learner-{index}", "batching", "p")
        assert locked.value in (index, index + 10)
        assert store.progress(f"learner-{index}")["prefill_decode"].num_runs == 16


def test_two_stores_on_one_file_do_not_block_each_other(tmp_path):
    stores = [Store(url_of(tmp_path / "lab.sqlite3")) for _ in range(3)]

    def work(index: int) -> None:
        for _ in range(10):
            stores[index % 3].save_answer("ann", "batching", f"q{index}", ["a"], 1.0)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert [s.notice for s in stores] == [None] * 3
    assert len(stores[0].answers("ann")) == 60


# ------------------------------------------------------------------ a broken disk


def set_aside(folder: Path) -> list[Path]:
    return list(folder.glob("lab.damaged-*.sqlite3"))


@pytest.mark.parametrize(
    "content", [b"this is no database" * 500, b"SQLite format 3\x00" + b"\xff" * 9_000, b"x" * 600]
)
def test_a_damaged_file_is_set_aside_whole(tmp_path, content):
    path = tmp_path / "lab.sqlite3"
    path.write_bytes(content)
    store = Store(url_of(path))
    (aside,) = set_aside(tmp_path)
    assert aside.read_bytes() == content
    assert aside.name in store.notice and store.notice.count(".") >= 2
    assert aside.name in store.notice_in("zh") and store.notice_in("zh").endswith("。")
    assert not store.in_memory
    store.save_answer(store.learner("ann"), "batching", "q", ["a"], 1.0)
    store.close()
    again = Store(url_of(path))
    assert again.notice is None
    assert len(again.answers("ann")) == 1


def filled_store(path: Path) -> Store:
    store = Store(url_of(path))
    for index in range(40):
        store.save_run(small_run(index), {"r0": "text" * 500}, "prefill_decode", store.learner(f"learner-{index}"))
    return store


def test_an_empty_file_is_simply_a_new_database(tmp_path):
    (tmp_path / "lab.sqlite3").touch()
    store = Store(url_of(tmp_path / "lab.sqlite3"))
    assert store.notice is None and set_aside(tmp_path) == []


@pytest.mark.parametrize("how", ["zeros", "truncated"])
def test_damage_inside_a_file_is_found_when_it_is_opened(tmp_path, how):
    path = tmp_path / "lab.sqlite3"
    filled_store(path).close()
    data = bytearray(path.read_bytes())
    assert len(data) > 20_000
    if how == "zeros":
        data[4_096:] = bytes(len(data) - 4_096)
    else:
        data = data[: len(data) // 2]
    path.write_bytes(data)
    store = Store(url_of(path))
    assert len(set_aside(tmp_path)) == 1
    assert not store.in_memory
    assert store.learner("ann") == "ann"


def test_damage_that_shows_up_at_a_later_write(tmp_path):
    path = tmp_path / "lab.sqlite3"
    store = filled_store(path)
    store._db._engine.dispose()  # the last connection takes the -wal with it
    path.write_bytes(b"overwritten by something else" * 1_000)
    assert store.save_answer("ann", "batching", "q", ["a"], 1.0) == 1
    assert len(set_aside(tmp_path)) == 1
    assert "damaged" in store.notice
    assert len(store.answers("ann")) == 1
    assert len(Store(url_of(path)).answers("ann")) == 1, "it was written to the new file"


def test_damage_that_shows_up_at_a_later_read_in_many_threads(tmp_path):
    path = tmp_path / "lab.sqlite3"
    store = filled_store(path)
    store._db._engine.dispose()
    path.write_bytes(b"overwritten by something else" * 1_000)
    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(lambda i: store.answers(f"learner-{i}"), range(12))) == [[]] * 12
    assert len(set_aside(tmp_path)) == 1, "only one thread sets the file aside"
    assert not store.in_memory


def test_two_damaged_files_in_one_second_both_survive(tmp_path):
    path = tmp_path / "lab.sqlite3"
    for content in (b"first" * 900, b"second" * 900):
        for old in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
            old.unlink(missing_ok=True)
        path.write_bytes(content)
        Store(url_of(path)).close()
    assert sorted(p.read_bytes() for p in set_aside(tmp_path)) == [b"first" * 900, b"second" * 900]


def test_a_file_deleted_under_us_is_begun_again(tmp_path):
    path = tmp_path / "lab.sqlite3"
    store = filled_store(path)
    store._db._engine.dispose()
    for part in tmp_path.iterdir():
        part.unlink()
    assert store.answers("ann") == []
    assert store.save_answer("ann", "batching", "q", ["a"], 1.0) == 1
    assert not store.in_memory


def test_a_foreign_database_is_left_as_it_is(tmp_path):
    path = tmp_path / "lab.sqlite3"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE learner (something INTEGER)")
    other.close()
    store = Store(url_of(path))
    assert store.learner("ann") == "ann"
    (aside,) = set_aside(tmp_path)
    with sqlite3.connect(aside) as kept:
        assert kept.execute("SELECT count(*) FROM learner").fetchone() == (0,)
    kept.close()


def test_a_full_disk_falls_back_to_memory_and_keeps_what_was_there(tmp_path):
    path = tmp_path / "lab.sqlite3"
    store = filled_store(path)

    @event.listens_for(store._db._engine, "connect")
    def no_more_room(connection, _record):
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count={pages}")  # SQLite then reports "database or disk is full"

    store._db._engine.dispose()
    for index in range(200):
        store.save_answer("learner-3", "batching", f"q{index}", "x" * 3_000, 1.0)
    assert store.in_memory and "disk is full" in store.notice and "磁盘" in store.notice_in("zh")
    assert len(store.answers("learner-3")) == 200
    assert store.run(small_run(3).run_id) == small_run(3), "what was on disk can still be read"


def test_a_database_that_became_read_only_falls_back_to_memory(tmp_path):
    store = filled_store(tmp_path / "lab.sqlite3")

    @event.listens_for(store._db._engine, "connect")
    def read_only(connection, _record):
        connection.execute("PRAGMA query_only=ON")

    store._db._engine.dispose()
    assert store.save_answer("learner-3", "batching", "q", ["a"], 1.0) == 1
    assert store.in_memory and str(tmp_path) in store.notice
    assert store.progress("learner-3")["prefill_decode"].num_runs == 1


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////proc/no/such/lab.sqlite3",
        "sqlite:////dev/null/lab.sqlite3",
        "postgresql+psycopg://me:secret@127.0.0.1:1/lab",
        "postgresql+nodriver://me:secret@127.0.0.1:1/lab",
        "nonsense://x",
        "not an address",
        "",
    ],
)
def test_an_unusable_place_gives_one_sentence_and_a_working_store(url):
    store = Store(url)
    assert store.in_memory
    for lang, stop in (("en", "."), ("zh", "。")):
        assert store.notice_in(lang).endswith(stop)
        assert "secret" not in store.notice_in(lang) and "{" not in store.notice_in(lang)
    assert store.save_answer(store.learner("ann"), "batching", "q", ["a"], 1.0) == 1
    assert len(store.answers("ann")) == 1


def test_a_folder_in_place_of_the_file(tmp_path):
    (tmp_path / "lab.sqlite3").mkdir()
    store = Store(url_of(tmp_path / "lab.sqlite3"))
    assert store.in_memory and store.notice
    assert (tmp_path / "lab.sqlite3").is_dir()


def test_a_database_from_a_newer_lab_is_not_touched(tmp_path):
    path = tmp_path / "lab.sqlite3"
    first = Store(url_of(path))
    first.save_answer(first.learner("ann"), "batching", "q", ["a"], 1.0)
    first._db.write(lambda c: c.exec_driver_sql("UPDATE meta SET value='99'"))
    first.close()
    store = Store(url_of(path))
    assert store.in_memory and "newer version" in store.notice
    store.save_answer(store.learner("bob"), "batching", "q", ["a"], 1.0)
    with sqlite3.connect(path) as raw:
        assert raw.execute("SELECT id FROM learner").fetchall() == [("ann",)]
    raw.close()


def test_a_long_lock_by_another_program_does_not_stop_the_lesson(tmp_path, monkeypatch):
    monkeypatch.setattr("lessons.database.BUSY_TIMEOUT_MS", 50)
    store = Store(url_of(tmp_path / "lab.sqlite3"))
    blocker = sqlite3.connect(tmp_path / "lab.sqlite3", isolation_level=None)
    blocker.execute("BEGIN EXCLUSIVE")
    assert store.save_answer("ann", "batching", "q", ["a"], 1.0) == 1
    assert store.in_memory and "locked" in store.notice
    blocker.close()


def test_our_own_mistakes_are_not_hidden(tmp_path):
    store = Store(url_of(tmp_path / "lab.sqlite3"))
    with pytest.raises(Exception, match="FOREIGN KEY"):
        store._db.write(lambda c: c.exec_driver_sql("INSERT INTO preference(learner, key, value) VALUES('x','y','z')"))
    with pytest.raises(Exception, match="syntax"):
        store._db.read(lambda c: c.exec_driver_sql("SELEC 1"))
    assert store.notice is None and not store.in_memory


def test_a_write_is_whole_or_not_at_all(tmp_path):
    database = Database(url_of(tmp_path / "lab.sqlite3"), metadata, ensure_version)

    def half(connection):
        connection.exec_driver_sql("INSERT INTO learner(id, created_utc) VALUES('ann', '')")
        raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError):
        database.write(half)
    assert database.read(lambda c: c.exec_driver_sql("SELECT count(*) FROM learner").scalar()) == 0


def test_sqlite_is_set_up_as_designed(tmp_path):
    store = Store(url_of(tmp_path / "lab.sqlite3"))

    def pragma(name):
        return store._db.read(lambda c: c.exec_driver_sql(f"PRAGMA {name}").scalar())

    assert [pragma(p) for p in ("journal_mode", "busy_timeout", "foreign_keys")] == ["wal", 5_000, 1]
    tables = store._db.read(lambda c: inspect(c).get_table_names())
    assert sorted(tables) == ["answer", "event", "learner", "meta", "prediction", "preference", "run"]
    assert store._db.read(lambda c: c.exec_driver_sql("SELECT value FROM meta").scalar()) == "1"
