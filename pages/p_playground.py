"""The playground: any scenario by form or by JSON, run, kept, exported, and set beside any other Run."""

import streamlit as st

from pages._ui import jobs, playground_form, playground_runs, run_diff, run_pair, run_panel, session
from pages._ui.badges import note
from pages._ui.i18n import t
from pages._ui.layout import lead

st.title(t("playground.title"), anchor=False)
lead(t("playground.goal"), "goal")

st.header(t("playground.scenario"), anchor="scenario", divider="gray")
playground_form.prepare()
playground_form.draw()
playground_form.publish()
scenario, wrong = playground_form.current()


def make_parts() -> list[jobs.Part]:
    assert scenario is not None  # the button is disabled otherwise
    return [jobs.Part("run", scenario)]


st.header(t("playground.run"), anchor="run", divider="gray")
run_panel.panel(
    playground_runs.PLAYGROUND,
    make_parts,
    "",
    None if scenario is not None else t("playground.mend_first"),
    lambda job: playground_runs.show_next(job.run_ids[-1]),
)

st.header(t("playground.look"), anchor="look", divider="gray")
playground_runs.importer()
first, second = playground_runs.choose()
if first is not None:
    run = session.store().run(first.key)
    other = session.store().run(second.key) if second is not None else None
    if run is None or (second is not None and other is None):
        st.warning(t("playground.unreadable"), icon=":material/error:")
    if run is not None:
        with st.container(border=True, key="what_if"):
            st.subheader(t("playground.what_if"), anchor="what-if")
            playground_runs.what_if(first.key, run)
        one, two = playground_runs.labels(first, second)
        pair = [(one, run)] if other is None else [(one, run), (two, other)]
        run_pair.draw(pair, key="pg")
        if other is not None:
            run_diff.draw(run, other, key="pg_diff")
        playground_runs.exports(run, session.store().texts(run.run_id).pieces or None)
    note(t("playground.command"))
    st.code(
        "python -m engine run SCENARIO.json --out RUN.jsonl\npython -m engine diff A.jsonl B.jsonl",
        language="bash",
        wrap_lines=True,
    )
