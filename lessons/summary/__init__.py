"""The last lesson: every claim checked in one table, the concepts as a map, one run predicted as a whole, the exam."""
