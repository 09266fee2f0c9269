// The timeline player, part 6: its elements. Built once per mount; texts are set as text, never as markup.

const ICONS = {
  play: "M7 4v16l13-8z",
  pause: "M6 4h4v16H6zM14 4h4v16h-4z",
  step_back: "M6 4h3v16H6zM20 4v16l-10-8z",
  step_forward: "M15 4h3v16h-3zM4 4v16l10-8z",
  zoom_in: "M10 4a6 6 0 1 0 3.6 10.8l5 5 1.4-1.4-5-5A6 6 0 0 0 10 4zm-1 3h2v2h2v2h-2v2H9v-2H7V9h2z",
  zoom_out: "M10 4a6 6 0 1 0 3.6 10.8l5 5 1.4-1.4-5-5A6 6 0 0 0 10 4zM7 9h6v2H7z",
};

function element(tag, className, parent, attributes = {}) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (parent) parent.append(made);
  return made;
}

function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

// The frame that does not depend on the Runs.
function buildPage() {
  const page = { root: element("div", "root", null, { role: "group", tabindex: "0" }) };
  const bar = element("div", "bar", page.root);
  page.buttons = {};
  const button = (name, className) => {
    const made = element("button", className, bar, { type: "button", "data-action": name });
    made.append(icon(name));
    page.buttons[name] = made;
    return made;
  };
  button("step_back", "tool");
  page.playText = element("span", "", button("play", "tool main"));
  button("step_forward", "tool");
  page.readout = element("span", "readout", bar);
  page.speed = element("select", "speed", bar);
  button("zoom_out", "tool");
  button("zoom_in", "tool");
  page.status = element("span", "status", bar);
  page.difference = element("p", "difference", page.root);
  page.runs = element("div", "runs", page.root);
  page.scrub = element("input", "scrub", null, { type: "range", min: "0", step: "any" });
  page.note = element("p", "note", page.root);
  page.legend = element("ul", "legend", page.root);
  page.texts = element("details", "texts", page.root);
  page.textsTitle = element("summary", "", page.texts);
  page.textsBody = element("div", "", page.texts);
  page.keys = element("p", "keys", page.root);
  page.announce = element("div", "announce", page.root, { "aria-live": "polite", role: "status" });
  return page;
}

// Strings of the frame, set again with every update because the language may have changed.
function labelPage(page, words) {
  const { text } = words;
  page.root.setAttribute("aria-label", text.player_label);
  page.root.lang = words.lang;
  for (const name of ["step_back", "step_forward", "zoom_in", "zoom_out"]) {
    page.buttons[name].setAttribute("aria-label", text[name]);
    page.buttons[name].title = text[name];
  }
  page.speed.setAttribute("aria-label", text.speed);
  page.scrub.setAttribute("aria-label", text.scrub);
  page.keys.textContent = text.keys_help;
  page.textsTitle.textContent = text.text_so_far;
}

// One section per Run: title, picture, sentences.
function buildSections(page, runs, words) {
  page.runs.replaceChildren();
  const sections = runs.map((run, i) => {
    const section = element("section", "run", page.runs);
    const title = element("p", "title", section);
    element("strong", "", title).textContent = run.label;
    const total = element("span", "total", title);
    const badge = element("span", "badge", title);
    const columns = element("div", "columns", section);
    const picture = element("div", "picture", columns);
    if (i === 0) picture.append(page.scrub);
    const canvas = element("canvas", "canvas", picture, { role: "img" });
    const panel = element("div", "panel", columns);
    const [frame, data] = [document.createElement("canvas"), document.createElement("canvas")];
    return { total, badge, canvas, panel, frame, data, said: "" };
  });
  labelSections(sections, runs, words);
  return sections;
}

function labelSections(sections, runs, words) {
  runs.forEach((run, i) => {
    const { total, badge, canvas } = sections[i];
    const values = { device: run.device, dtype: run.dtype, run_id: run.run_id };
    total.textContent = run.numSteps ? words.say("total", { total: words.whole(run.total) }) : "";
    badge.textContent = [run.badge ?? words.text.badge, run.device, run.dtype, run.run_id].filter(Boolean).join(" · ");
    badge.title = words.say("badge_title", values);
    canvas.setAttribute("aria-label", words.say("canvas_label", {
      label: run.label, total: words.whole(run.total),
      requests: words.counted("requests", run.ids.length), steps: words.counted("steps", run.numSteps),
    }));
  });
}

// Only what occurs in these Runs is explained.
function fillLegend(list, runs, words) {
  const phases = new Set(runs.flatMap((r) => r.spans.map((s) => s.phase)));
  const kinds = new Set(runs.flatMap((r) => r.events.map((e) => e.kind)));
  const shown = ["waiting", "prefill", "decode"];
  if (phases.has("recompute")) shown.push("recompute");
  if (phases.has("padding")) shown.push("padding");
  if (kinds.has("preempted")) shown.push("preempted");
  shown.push("finished");
  if (kinds.has("abort")) shown.push("aborted");
  list.setAttribute("aria-label", words.text.legend);
  list.replaceChildren(...shown.map((mark) => {
    const item = element("li");
    element("i", `mark ${mark}`, item, { "aria-hidden": "true" });
    element("span", "", item).textContent = words.text[`legend_${mark}`];
    return item;
  }));
}

function fillPanel(panel, said) {
  const heading = element("p", "heading");
  element("strong", "", heading).textContent = said.heading;
  if (said.time) element("span", "time", heading).textContent = said.time;
  const list = element("ul", "lines");
  for (const { mark, text } of said.lines) {
    const item = element("li", "", list);
    element("i", `mark ${mark}`, item, { "aria-hidden": "true" });
    element("span", "", item).textContent = text;
  }
  panel.replaceChildren(heading, list);
}

// What each request has produced so far: plain text, whatever the model wrote.
function fillTexts(body, runs, t) {
  const blocks = [];
  for (const run of runs.filter((r) => r.pieces)) {
    const made = tokensAt(run, t);
    const list = element("dl", "made");
    if (runs.length > 1) element("dt", "whose", list).textContent = run.label;
    run.ids.forEach((id, request) => {
      element("dt", "", list).textContent = id;
      element("dd", "", list).textContent = run.pieces[request].slice(0, made[request]).join("") || "–";
    });
    blocks.push(list);
  }
  body.replaceChildren(...blocks);
}
