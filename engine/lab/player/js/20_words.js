// The timeline player, part 2: words and numbers. Every string comes from the catalogue that the page sent.

const LIST_LIMIT = 8; // names in one sentence; the rest is counted ("and 56 more"), the table has them all

class Words {
  constructor(text, lang) {
    this.text = text;
    this.lang = lang;
    this.gap = lang === "zh" ? "" : " ";
  }

  say(key, values = {}) {
    const template = this.text[key];
    if (template === undefined) return key;
    return template.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
  }

  counted(key, n, values = {}) {
    return this.say(`${key}_${n === 1 ? "one" : "other"}`, { n: this.whole(n), ...values });
  }

  whole(value) {
    return Math.round(value).toLocaleString(this.lang);
  }

  // Three significant digits; whole numbers are written out, as everywhere in the lab.
  short(exact) {
    const value = Math.round(exact * 1000) / 1000; // ms to the microsecond, so that differences show no float tail
    if (Number.isInteger(value)) return this.whole(value);
    const digits = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))));
    return value.toLocaleString(this.lang, { minimumFractionDigits: digits, maximumFractionDigits: digits });
  }

  // A reading of the clock, fine enough to tell steps apart: whole ms, with decimals where the whole run is short.
  clock(value, total) {
    const digits = total < 20 ? 2 : total < 200 ? 1 : 0;
    return value.toLocaleString(this.lang, { minimumFractionDigits: digits, maximumFractionDigits: digits });
  }

  // A number as it is, for values that are round by choice (a speed).
  plain(value) {
    return value.toLocaleString(this.lang, { maximumFractionDigits: 6 });
  }

  // A number on the axis: as many decimals as the distance of the marks needs.
  axis(value, step) {
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    return value.toLocaleString(this.lang, { minimumFractionDigits: digits, maximumFractionDigits: digits });
  }

  // "A, B and C"; long lists end in a count.
  list(items) {
    const shown = items.length > LIST_LIMIT + 1 ? items.slice(0, LIST_LIMIT) : items;
    const rest = items.length - shown.length;
    const parts = rest ? [...shown, this.say("more", { n: rest })] : shown;
    if (parts.length < 2) return parts.join("");
    return parts.slice(0, -1).join(this.text.comma) + this.text.and + parts[parts.length - 1];
  }
}

// What happens at time t, as {heading, time, lines: [{mark, text}]}; mark names the symbol of the legend.
function describe(run, t, words) {
  const now = moment(run, t);
  if (run.numSteps === 0) return { heading: words.say("empty"), time: "", lines: [] };
  if (now.state !== "step") return describePause(run, t, now, words);
  const { k } = now;
  const heading = words.say("step_heading", {
    step: run.number[k], first: run.number[0], last: run.number[run.numSteps - 1],
  });
  const time = words.say("step_time", {
    begin: words.clock(run.begin[k], run.total), end: words.clock(run.end[k], run.total),
    length: words.short(run.end[k] - run.begin[k]),
  });
  const active = run.spans.filter((s) => s.from <= k && k < s.to);
  const lines = [];
  const events = run.events.filter((e) => e.step === k);
  const ids = (kind) => events.filter((e) => e.kind === kind).map((e) => run.ids[e.request]);
  const add = (mark, key, items) => {
    if (items.length) lines.push({ mark, text: words.counted(key, items.length, { list: words.list(items) }) });
  };
  add("preempted", "say_preempted", ids("preempted"));
  for (const phase of ["prefill", "recompute"]) {
    const chunks = active.filter((s) => s.phase === phase).map((s) => chunkWords(run, s, words));
    if (chunks.length) lines.push({ mark: phase, text: words.say(`say_${phase}`, { list: words.list(chunks) }) });
  }
  add("prefill", "say_first", ids("token"));
  for (const phase of ["decode", "padding"]) {
    add(phase, `say_${phase}`, active.filter((s) => s.phase === phase).map((s) => run.ids[s.request]));
  }
  lines.push(...describeWaiting(run, k, words));
  const ended = (wanted) => events.filter((e) => FINISHES.has(e.kind) && (e.kind === "abort") === wanted)
    .map((e) => words.say("item_finish", { id: run.ids[e.request], why: words.say(`finish_${e.kind}`) }));
  add("finished", "say_finished", ended(false));
  add("aborted", "say_finished", ended(true));
  lines.push({ mark: "blocks", text: describeBlocks(run, k, words) });
  return { heading, time, lines };
}

function chunkWords(run, span, words) {
  const values = {
    id: run.ids[span.request], tokens: words.counted("tokens", span.tokens),
    start: span.start, end: span.start + span.tokens - 1, cached: span.cached,
  };
  return words.say(span.cached ? "item_chunk_cached" : "item_chunk", values);
}

function describeWaiting(run, k, words) {
  const lines = [];
  for (const why of [...REASONS, "not_its_turn"]) {
    const names = run.waits.filter((w) => w.why === why && w.from <= k && k < w.to).map((w) => run.ids[w.request]);
    if (!names.length) continue;
    const values = { list: words.list(names), why: words.say(`why_${why}`) };
    lines.push({ mark: "waiting", text: words.counted("say_waiting", names.length, values) });
  }
  const fresh = run.ids.filter((_, r) => run.arrival[r] > run.begin[k] && run.arrival[r] < run.end[k]);
  if (fresh.length) {
    lines.push({ mark: "waiting", text: words.counted("say_arrived", fresh.length, { list: words.list(fresh) }) });
  }
  return lines;
}

function describeBlocks(run, k, words) {
  const change = run.inUse[k] - (k ? run.inUse[k - 1] : 0);
  const said = change === 0 ? words.say("no_change") : `${change > 0 ? "+" : "−"}${Math.abs(change)}`;
  const values = { in_use: run.inUse[k], total: words.whole(run.num_blocks), change: said, cached: run.cached[k] };
  return words.say(run.cached[k] ? "say_blocks_cached" : "say_blocks", values);
}

function describePause(run, t, now, words) {
  const time = words.say("total", { total: words.clock(Math.min(t, run.total), run.total) });
  if (now.state === "before") return { heading: words.say("say_before"), time, lines: [] };
  if (now.state === "done") {
    const whole = run.finishedAt.every(Number.isFinite);
    const text = words.say(whole ? "say_done" : "say_cut", { in_use: run.inUse[now.k] });
    const heading = words.say("ends", { total: words.short(run.total) });
    return { heading, time: "", lines: [{ mark: whole ? "finished" : "blocks", text }] };
  }
  const next = Math.min(...run.arrival.filter((a) => a > t));
  const text = Number.isFinite(next)
    ? words.say("say_idle_next", { ms: words.short(next) })
    : words.say("say_idle");
  return { heading: text, time, lines: [{ mark: "blocks", text: describeBlocks(run, now.k, words) }] };
}

// Which Run ended first and how long before the last one, in one sentence; empty for a single Run.
function differenceWords(runs, words) {
  if (runs.length < 2 || runs.some((r) => r.numSteps === 0)) return "";
  const sorted = [...runs].sort((a, b) => a.total - b.total);
  const [fast, slow] = [sorted[0], sorted[sorted.length - 1]];
  const gap = slow.total - fast.total;
  if (Math.round(gap) === 0 || fast.total <= 0) return words.say("same_end", { total: words.whole(fast.total) });
  return words.say("difference", {
    fast: fast.label, slow: slow.label, ms: words.whole(gap), ratio: words.short(slow.total / fast.total),
  });
}
