"""Shared widgets of the pages: what is drawn the same way everywhere. No page text lives here, only its catalogue."""
