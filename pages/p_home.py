"""Home: what the lab is, what it runs on, the course with the learner's progress. Never waits for the engine."""

import streamlit as st

from pages._ui import home, layout, session
from pages._ui.i18n import language, t

lang = language()
st.title(t("common.product"), anchor=False)
layout.lead(t("common.tagline"), "tagline")
st.markdown(t("home.intro"))
home.continue_button(lang)

st.header(t("home.how"), anchor="how", divider="gray")
home.how_it_works()

st.header(t("home.map"), anchor="course", divider="gray")
home.course_map(lang)

st.header(t("home.device"), anchor="device", divider="gray")
home.device_card(lang)

st.header(t("home.badges"), anchor="badges", divider="gray")
home.badge_legend()
home.teaching(lang)
home.my_data(session.learner())
