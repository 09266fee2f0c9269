"""Somebody without a mouse, in a real browser: what acts here is a key; scripts only look where the focus is.

``Keyboard.to`` walks with Tab, ``fill`` answers every field of a form, ``sweep`` walks once round the whole page and
says what cannot be reached, where the focus cannot be seen, and where the walk does not end. No test of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # who has no browser can still collect the tests
    from playwright.sync_api import Locator, Page

MOST_TABS = 900
# Open shadow roots are looked into: the player lives in one. A radio group or a toolbar is one stop, its members are
# reached with the arrow keys. A number field's own + and - and the grid's search are extras of keys it has anyway.
LOOK = """
window.__walk ??= {
  stops: 'a[href], button:not(:disabled), input:not(:disabled):not([type=hidden]), select:not(:disabled), summary,'
    + ' textarea:not(:disabled), [tabindex]:not([tabindex^="-"])',
  groups: '[role=radiogroup], [role=toolbar], [role=tablist], [role=listbox], [role=grid]',
  active() {
    let e = document.activeElement;
    while (e && e.shadowRoot && e.shadowRoot.activeElement) e = e.shadowRoot.activeElement;
    return e;
  },
  up(e) { return e.parentElement ?? (e.getRootNode().host || null); },
  within(e, box) { while (e && e !== box) e = this.up(e); return e === box; },
  closest(e, selector) { while (e && !e.matches(selector)) e = this.up(e); return e; },
  all(root = document) {
    return [...root.querySelectorAll('*')].flatMap(
      e => [...(e.matches(this.stops) ? [e] : []), ...(e.shadowRoot ? this.all(e.shadowRoot) : [])]);
  },
  shown(e) {
    return e.getClientRects().length > 0 && e.checkVisibility({visibilityProperty: true, opacityProperty: true})
      && !this.closest(e, '[inert], [aria-hidden=true]');
  },
  say(e) {
    if (!e || e === document.body) return 'nothing';
    const named = e.getAttribute('aria-label') || e.innerText || e.labels?.[0]?.innerText || e.textContent || '';
    const near = this.closest(e, '[data-testid]')?.dataset.testid ?? '';
    return `${e.localName}${e.type ? ':' + e.type : ''} "${named.trim().replace(/\\s+/g, ' ').slice(0, 50)}" (${near})`;
  },
  look(e) {  // what of the element, around it and in its label changes when it has the focus
    const parts = [e, ...[...e.querySelectorAll('*')].slice(0, 8)], label = e.closest('label') ?? e.parentElement;
    for (let up = e, n = 0; n < 8 && (up = this.up(up)); n++) parts.push(up);
    if (label) parts.push(...[...label.querySelectorAll('*')].slice(0, 20));
    return parts.map(p => { const s = getComputedStyle(p);
      return [s.outline, s.boxShadow, s.border, s.backgroundColor, s.textDecoration, s.opacity, s.stroke].join();
    }).join(';');
  },
  note() {  // one stop of a sweep: the one before has lost the focus, this one has it
    const e = this.active(), seen = this.seen ??= new Map(), before = this.before;
    if (before && before !== e && before.isConnected) {
      const mine = seen.get(before);
      mine.visible ||= this.look(before) !== mine.style;
    }
    if (!e || e === document.body) { this.before = null; return {round: false, closed: false, grid: false}; }
    const round = seen.keys().next().value === e;
    seen.set(e, {visible: seen.get(e)?.visible ?? false, style: this.look(e)});
    this.before = e;
    const closed = e.localName === 'summary' && !e.parentElement.open;
    return {round, closed, grid: !!this.closest(e, '[data-testid=stDataFrame]')};
  },
  end() {
    const seen = this.seen ?? new Map();
    const groups = new Set([...seen.keys()].map(e => this.closest(e, this.groups)).filter(Boolean));
    const radios = new Set([...seen.keys()].filter(e => e.type === 'radio').map(e => e.name));
    const missed = this.all().filter(e => this.shown(e) && !seen.has(e) && e.getAttribute('tabindex') !== '-1'
      && !groups.has(this.closest(e, this.groups)) && !(e.type === 'radio' && radios.has(e.name)));
    const unseen = [...seen].filter(([e, {visible}]) => e.isConnected && !visible).map(([e]) => this.say(e));
    delete this.seen; delete this.before;
    return {missed: missed.map(e => this.say(e)), unseen, stops: seen.size};
  },
};
"""
PLACE = """e => [...e.closest('[data-testid=stVerticalBlock]').querySelectorAll('[data-testid=stButtonGroup]')]
    .indexOf(e)"""  # which step of its question it is


class Unreachable(AssertionError):
    """The Tab key does not get there."""


@dataclass
class Sweep:
    """Once round the page. ``missed``: shown, but no stop. ``unseen``: a stop without a visible sign of the focus."""

    stops: int
    missed: list[str]
    unseen: list[str]
    in_grids: int = 0
    opened: int = 0
    trap: str = ""


@dataclass
class Keyboard:
    """A page and its keys. ``presses`` counts them."""

    page: Page
    presses: int = field(default=0)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
            self.presses += 1

    def look(self, script: str):
        """The answer of ``script``, in which ``walk`` is the helper above."""
        self.page.evaluate(LOOK)
        return self.page.evaluate(f"() => {{ const walk = window.__walk; return {script}; }}")

    def at(self) -> str:
        """Where the focus is, in words."""
        return self.look("walk.say(walk.active())")

    def is_in(self, target: Locator) -> bool:
        self.page.evaluate(LOOK)
        return target.evaluate_all("(all) => all.some((e) => __walk.within(__walk.active(), e))")

    def to(self, target: Locator, what: str, key: str = "Tab", most: int = MOST_TABS) -> int:
        """Press Tab until ``target`` or something in it has the focus. Returns how often it was pressed."""
        for presses in range(most):
            if self.is_in(target):
                return presses
            self.press(key)
        raise Unreachable(f"{what}: not reached with {most} times {key}; the focus is on {self.at()}")

    def fill(self, form: Locator, number: str = "7") -> int:
        """Answer every field of a form, in its order. Returns how many there were."""
        kinds = ("stNumberInput", "stTextInput", "stRadio", "stCheckbox", "stButtonGroup")
        fields = form.locator(", ".join(f"[data-testid={kind}]" for kind in kinds))
        for index in range(fields.count()):
            one = fields.nth(index)
            kind = one.get_attribute("data-testid")
            if kind in ("stNumberInput", "stTextInput"):
                self.to(one.locator("input"), kind)
                self.press("Control+a")
                low, high = (one.locator("input").get_attribute(name) for name in ("min", "max"))
                value = min(max(float(number), float(low or number)), float(high or number))
                self.page.keyboard.type(f"{value:g}")
            elif kind == "stRadio":
                self.to(one.locator("input"), kind)
                self.press("Space", *["ArrowDown"] * (index % 2))
                assert one.locator("input:checked").count() == 1, f"no choice was made with the keys: {self.at()}"
            elif kind == "stCheckbox":
                self.to(one.locator("input"), kind)
                before = one.locator("input").is_checked()
                self.press("Space")
                assert one.locator("input").is_checked() != before, f"not checked by Space: {self.at()}"
            else:  # a place in an order: the k-th step gets the k-th place
                self.to(one.get_by_role("radio"), kind)
                self.choose(one, one.evaluate(PLACE))
        return fields.count()

    def choose(self, group: Locator, index: int) -> None:
        """In a row of buttons of which one can be chosen: the one at ``index``, with arrows and Space."""
        options = group.get_by_role("radio")
        for _ in range(options.count() + 1):
            if self.is_in(options.nth(0)):
                break
            self.press("ArrowLeft")
        self.press(*["ArrowRight"] * index, "Space")
        assert options.nth(index).get_attribute("aria-checked") == "true", f"not chosen with the keys: {self.at()}"

    def sweep(self, settle: Callable[[], None]) -> Sweep:
        """Once round the whole page, opening what is closed on the way, as far as the first stop."""
        self.page.evaluate(LOOK)
        style = self.page.add_style_tag(content="*, *::before, *::after { transition: none !important; }")
        opened = in_grids = 0
        trap = ""
        for presses in range(MOST_TABS):
            self.press("Tab")
            here = self.look("walk.note()")
            in_grids += here["grid"]
            if here["round"] and presses:
                break
            if here["closed"]:
                self.press("Enter")
                opened += 1
                settle()
        else:
            trap = f"no end after {MOST_TABS} times Tab, at {self.at()}"
        found = self.look("walk.end()")
        style.evaluate("e => e.remove()")
        return Sweep(found["stops"], found["missed"], found["unseen"], in_grids, opened, trap)
