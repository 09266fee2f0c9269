"""The screens of the lab. Streamlit runs ``_main.py``; every other page is a thin script that it navigates to."""
