"""Lesson folder: lesson.yaml, texts, quiz bank, and what is computed from the learner's own Runs."""
