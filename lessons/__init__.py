"""The lessons: texts in two languages, predictions, quizzes, workloads, and what a learner did. Torch-free.

Adding a lesson takes new files only; nothing is registered. With ``<id>`` for its id (small letters and ``_``):

* ``lessons/<id>/lesson.yaml``    title, goal, misconceptions, predictions, code links, sections; ``order``, ``chapter``
* ``lessons/<id>/en.md, zh.md``   the sections, each ``## <section>``: at least before, after, why, summary;
  placeholders ``{name}`` are filled from the learner's Runs, but ``before*`` and ``summary`` have none
* ``lessons/<id>/quiz.yaml``      the bank: choice, several, number, order; any of them may show a ``trace``
* ``lessons/<id>/facts.py``       ``facts(runs)``, ``sections(runs)``, ``prediction_answers(runs)``; raise FactsError
* ``lessons/<id>/items.py``       ``GENERATORS``: questions made from Runs; their words in ``generated.yaml``
* ``lessons/<id>/scenarios.py``   the workloads, as Scenarios; ``later(...)`` for parts made from earlier Runs;
  ``default_parts(lang)``: the experiment of the page with untouched settings, as ``lessons.parts.Part``
* ``lessons/<id>/recorded/``      the Runs of that experiment: ``python -m lessons record <id>`` writes them, from the
  real engine on a quiet machine; at most 400 kB. With them the lesson works without an engine, and a learner's own
  Runs are set beside them; page and pictures need no code for it (``lessons.shown``, ``pages/_ui/recorded_run.py``)
* ``lessons/<id>/guide.en.md, guide.zh.md``   for whoever teaches it; ``lessons/guide.py`` has its form. The projector
  view (``?present=1``) and the notes window beside it need nothing else: sections are the page's headings
* ``lessons/<id>/claims.py, claims.yaml``   the source's claims that it checks, if any (``lessons.claims``)
* ``pages/p_<id>.py``             the page; it is in the navigation as soon as lesson and page exist
* ``pages/_ui/<id>_views.py``     its pictures; ``pages/_ui/text/{en,zh}/<id>.yaml`` its words, keys ``<id>.*``
* ``tests/unit/lesson_cases/<id>.py``   Runs for its tests and an independent checker of its items (see the package)
* ``tests/pages/test_<id>.py``    its page

``runs`` is a dict by role. A role is the label of the ``jobs.Part`` that made the Run: ``run``, or one per part of an
experiment (``static``, ``chunked``); the parts of one experiment are found again together (``Store.latest_runs``). Give
a part of a several-part experiment its name under ``<id>.part_<label>``, unless ``common.policy_<label>`` exists.
"""

from lessons.run_facts import FactsError, explanation, facts, headline, prediction_answers, sections

__all__ = ["FactsError", "explanation", "facts", "headline", "prediction_answers", "sections"]
