// The stage of a lesson on the projector: one section at a time, moved by keys, by buttons, or by the notes window.
// It hides and shows what the page has drawn and never draws any of it, so a section works as it does in the lesson.

const KEYS = { ArrowRight: 1, ArrowLeft: -1 };
const OWN_KEYS = "input, textarea, select, [contenteditable], [role=slider], [role=radio], [role=tab], [role=combobox]";
const CHANNEL = "token-by-token-present";
let stage = null;

class Stage {
  constructor(data) {
    this.data = data;
    this.index = 0;
    this.wanted = sessionStorage.getItem(this.place()) ?? "";
    this.channel = new BroadcastChannel(CHANNEL);
    this.channel.onmessage = (e) => this.hear(e.data);
    this.onKey = (e) => this.key(e);
    document.addEventListener("keydown", this.onKey);
    this.watch = new MutationObserver(() => this.later());
    this.watch.observe(document.querySelector("[data-testid=stMain]"), { childList: true, subtree: true });
    this.later();
  }

  place() {
    return `present:${this.data.path}`;
  }

  later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.arrange();
    });
  }

  // The parts of the page in their order; those that belong to no section (this bar) are left alone.
  parts() {
    const root = document.querySelector("[data-testid=stMainBlockContainer] > [data-testid=stVerticalBlock]");
    return [...(root?.children ?? [])].filter((part) => !part.querySelector(".st-key-present_bar, .st-key-present_style")
      && !part.matches(".st-key-present_bar, .st-key-present_style"));
  }

  arrange() {
    this.sections = [];
    const parts = this.parts();
    const first = parts.findIndex((part) => part.matches("h1") || part.querySelector("h1"));
    const belongs = parts.map((part, i) => {
      // What stands above the title has nothing to show but a warning; empty, it would only push the title down.
      if (i < first && !part.querySelector("[data-testid=stAlert]")) return -1;
      const head = part.matches("h1, h2") ? part : part.querySelector("h1, h2");
      if (head && head.tagName === "H2") {
        this.sections.push({ id: head.id || head.textContent, title: head.textContent.trim() });
      } else if (this.sections.length === 0) {
        this.sections.push({ id: "before", title: this.data.words.before });
      }
      return this.sections.length - 1;
    });
    if (this.wanted) {
      const found = this.sections.findIndex((section) => section.id === this.wanted);
      if (found >= 0) this.index = found;
    }
    this.index = Math.min(this.index, Math.max(this.sections.length - 1, 0));
    let changed = false;
    parts.forEach((part, i) => {
      const off = belongs[i] !== this.index;
      if (part.hasAttribute("data-present-off") !== off) changed = true;
      part.toggleAttribute("data-present-off", off);
    });
    if (changed) window.dispatchEvent(new Event("resize")); // charts that were drawn unseen have no width yet
    this.tell();
  }

  move(step) {
    const next = Math.min(Math.max(this.index + step, 0), this.sections.length - 1);
    if (next === this.index) return;
    this.index = next;
    this.wanted = this.sections[next].id;
    sessionStorage.setItem(this.place(), this.wanted);
    this.arrange();
    document.querySelector("[data-testid=stMain]")?.scrollTo(0, 0);
  }

  // A clicker sends PageDown: first the rest of a long section, then the next one.
  page(step) {
    const main = document.querySelector("[data-testid=stMain]");
    const room = step > 0 ? main.scrollHeight - main.clientHeight - main.scrollTop : main.scrollTop;
    if (room > 8) main.scrollBy({ top: step * 0.8 * main.clientHeight });
    else this.move(step);
  }

  key(e) {
    if (e.ctrlKey || e.metaKey || e.altKey || e.defaultPrevented) return;
    const target = e.composedPath()[0];
    if (target instanceof Element && target.closest(OWN_KEYS)) return;
    if (e.key in KEYS) this.move(KEYS[e.key]);
    else if (e.key === "PageDown" || e.key === "PageUp") this.page(e.key === "PageDown" ? 1 : -1);
    else return;
    e.preventDefault();
  }

  hear(message) {
    if (message.ask) this.tell(true);
    if (message.move) this.move(message.move);
  }

  tell(always) {
    const here = this.sections[this.index];
    if (!here) return;
    const told = `${here.id} ${this.index} ${this.sections.length} ${document.documentElement.lang}`;
    if (told !== this.told || always) {
      this.channel.postMessage({ path: this.data.path, section: here.id, index: this.index, count: this.sections.length });
    }
    this.told = told;
    const { bar } = this;
    if (!bar) return;
    bar.querySelector(".place").textContent = `${this.index + 1} / ${this.sections.length}`;
    bar.querySelector(".title").textContent = here.title;
    bar.querySelector(".previous").disabled = this.index === 0;
    bar.querySelector(".next").disabled = this.index === this.sections.length - 1;
  }

  rest() {
    document.removeEventListener("keydown", this.onKey);
    this.watch.disconnect();
    this.channel.close();
    document.querySelectorAll("[data-present-off]").forEach((part) => part.removeAttribute("data-present-off"));
  }
}

function address(mode) {
  const there = new URL(window.location.href);
  if (mode) there.searchParams.set("present", mode);
  else there.searchParams.delete("present");
  return there.href;
}

function build(bar, data) {
  const button = (name, text, mark) => {
    const made = document.createElement("button");
    made.type = "button";
    made.className = name;
    made.setAttribute("aria-label", text);
    made.title = text;
    made.textContent = mark;
    return made;
  };
  const place = Object.assign(document.createElement("span"), { className: "place" });
  const title = Object.assign(document.createElement("span"), { className: "title" });
  title.setAttribute("aria-live", "polite");
  const { words } = data;
  bar.replaceChildren(
    button("previous", words.previous, "‹"), place, button("next", words.next, "›"), title,
    button("notes", words.notes, words.notes), button("leave", words.leave, words.leave),
  );
  bar.querySelector(".previous").onclick = () => stage.move(-1);
  bar.querySelector(".next").onclick = () => stage.move(1);
  bar.querySelector(".notes").onclick = () => window.open(address("notes"), "token-by-token-notes", "popup,width=960,height=860");
  bar.querySelector(".leave").onclick = () => window.location.assign(address(""));
}

export default function present(component) {
  const { parentElement, data } = component;
  if (stage && stage.data.path !== data.path) {
    stage.rest();
    stage = null;
  }
  stage ??= new Stage(data);
  stage.data = data;
  stage.calls = (stage.calls ?? 0) + 1;
  const call = stage.calls;
  const bar = parentElement.querySelector(".bar");
  if (stage.bar !== bar || stage.lang !== data.lang) {
    build(bar, data);
    stage.bar = bar;
    stage.lang = data.lang;
    stage.told = "";
  }
  stage.later();
  const mine = stage;
  // A call that was overtaken by a newer one is cleaned up while the stage lives on.
  return () => {
    if (mine.calls !== call) return;
    mine.rest();
    if (stage === mine) stage = null;
  };
}
