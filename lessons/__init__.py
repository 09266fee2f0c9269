"""The lessons: texts in two languages, predictions, quizzes, workloads, and what a learner did. Torch-free."""

from lessons.run_facts import FactsError, explanation, facts, headline, prediction_answers, sections

__all__ = ["FactsError", "explanation", "facts", "headline", "prediction_answers", "sections"]
