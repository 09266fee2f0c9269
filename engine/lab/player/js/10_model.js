// The timeline player, part 1: what was sent, made searchable. Pure functions; times in milliseconds from here on.
//
// All files of this folder are one module, joined in the order of their numbers; only the last one exports.
// A "step index" k is a place in the record (0-based); `number[k]` is the step's own number, the one people read.

const PHASES = ["prefill", "decode", "recompute", "padding"];
const REASONS = ["no_blocks", "token_budget", "request_limit", "batch_not_drained"];
const EVENTS = ["admitted", "preempted", "token", "stop", "length", "abort"];
const FINISHES = new Set(["stop", "length", "abort"]);
const IDLE_GAP_MS = 2; // a longer pause between two steps is drawn and spoken of as one; a shorter one is bookkeeping

// One Run from its columns.
function buildRun(sent) {
  const n = sent.steps.number.length;
  const begin = new Float64Array(n);
  const end = new Float64Array(n);
  let clock = 0;
  for (let k = 0; k < n; k += 1) {
    clock += sent.steps.begin_delta[k];
    begin[k] = clock / 1000;
    end[k] = (clock + sent.steps.length[k]) / 1000;
  }
  const run = {
    ...sent, numSteps: n, begin, end,
    number: sent.steps.number,
    inUse: sent.steps.in_use,
    cached: sent.steps.cached,
    ids: sent.requests.id,
    arrival: sent.requests.arrival.map((us) => us / 1000),
    total: n ? end[n - 1] : 0,
    spans: rowsOf(sent.spans, (s) => { s.phase = PHASES[s.phase]; }),
    waits: rowsOf(sent.waits, (w) => { w.why = REASONS[w.why]; }),
    events: rowsOf(sent.events, (e) => { e.kind = EVENTS[e.kind]; }),
  };
  run.counts = countPhases(run);
  run.waits.push(...passedOver(run));
  run.finishedAt = new Array(run.ids.length).fill(Infinity);
  for (const e of run.events) if (FINISHES.has(e.kind)) run.finishedAt[e.request] = end[e.step];
  run.waitBars = waitBars(run);
  return run;
}

// Columns {a: [...], b: [...]} to rows [{a, b}, ...].
function rowsOf(columns, fix) {
  const names = Object.keys(columns);
  return columns[names[0]].map((_, i) => {
    const row = {};
    for (const name of names) row[name] = columns[name][i];
    fix(row);
    return row;
  });
}

// How many requests of each phase are in each step. Differences first, then one running sum.
function countPhases(run) {
  const counts = {};
  for (const phase of PHASES) counts[phase] = new Int32Array(run.numSteps + 1);
  for (const s of run.spans) {
    counts[s.phase][s.from] += 1;
    counts[s.phase][s.to] -= 1;
  }
  for (const phase of PHASES) for (let k = 1; k <= run.numSteps; k += 1) counts[phase][k] += counts[phase][k - 1];
  return counts;
}

// Steps in which an admitted request neither ran nor was refused: the step's tokens went to others.
// Same shape as waits.
function passedOver(run) {
  const busy = run.ids.map(() => []);
  for (const s of [...run.spans, ...run.waits]) busy[s.request].push(s);
  const ended = new Map(run.events.filter((e) => FINISHES.has(e.kind)).map((e) => [e.request, e.step]));
  const found = [];
  busy.forEach((list, request) => {
    list.sort((a, b) => a.from - b.from);
    const last = ended.get(request) ?? run.numSteps - 1;
    list.forEach((s, i) => {
      const next = Math.min(list[i + 1]?.from ?? run.numSteps, last + 1);
      if (next > s.to) found.push({ request, why: "not_its_turn", from: s.to, to: next });
    });
  });
  return found;
}

// The hollow bars in time: [{request, t0, t1, why, preempted}], why = null while no decision has been recorded yet.
function waitBars(run) {
  const stepBegin = (k) => (k < run.numSteps ? run.begin[k] : run.total);
  const thrownOut = new Set(run.events.filter((e) => e.kind === "preempted").map((e) => `${e.request} ${e.step}`));
  const bars = run.waits.map((w) => ({
    request: w.request, why: w.why, t0: run.begin[w.from], t1: stepBegin(w.to),
    preempted: thrownOut.has(`${w.request} ${w.from}`),
  }));
  const firstSeen = new Array(run.ids.length).fill(Infinity);
  const earliest = new Array(run.ids.length).fill(null);
  for (const s of run.spans) firstSeen[s.request] = Math.min(firstSeen[s.request], run.begin[s.from]);
  for (const bar of bars) {
    if (bar.t0 <= firstSeen[bar.request]) {
      firstSeen[bar.request] = bar.t0;
      earliest[bar.request] = bar;
    }
  }
  run.ids.forEach((_, request) => {
    const arrival = run.arrival[request];
    const seen = Math.min(firstSeen[request], run.total);
    if (arrival >= seen) return;
    // It arrived while a step was running: the bar begins at the arrival, its reason at the next decision.
    if (earliest[request]) earliest[request].t0 = arrival;
    else bars.push({ request, why: null, t0: arrival, t1: seen });
  });
  return bars.filter((b) => b.t1 > b.t0);
}

// Index of the last step that began at or before t, or -1.
function stepAt(run, t) {
  let low = 0;
  let high = run.numSteps;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (run.begin[middle] <= t) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

// What holds at time t: {state: before | step | idle | done, k}. A Run still being made (`open`) is never done.
function moment(run, t) {
  const k = stepAt(run, t);
  if (k < 0) return run.numSteps && run.begin[0] - t <= IDLE_GAP_MS ? { state: "step", k: 0 } : { state: "before", k };
  if (t < run.end[k]) return { state: "step", k };
  if (k === run.numSteps - 1) return { state: run.open ? "step" : "done", k };
  return { state: run.begin[k + 1] - run.end[k] > IDLE_GAP_MS ? "idle" : "step", k };
}

// All moments the playhead can be stepped to, sorted: each step's begin in any Run, idle pauses, the ends.
// Of moments that lie within the bookkeeping between steps only the last is kept, or one step would take two presses.
function stops(runs, total) {
  const found = new Set([0, total]);
  for (const run of runs) {
    for (let k = 0; k < run.numSteps; k += 1) {
      found.add(run.begin[k]);
      if (k + 1 < run.numSteps && run.begin[k + 1] - run.end[k] > IDLE_GAP_MS) found.add(run.end[k]);
    }
    if (run.numSteps) found.add(run.total);
  }
  const sorted = Float64Array.from(found).sort();
  const near = Math.min(IDLE_GAP_MS / 4, total / sorted.length / 4);
  return sorted.filter((t, i) => i === sorted.length - 1 || sorted[i + 1] - t > near);
}

// Output tokens each request has at time t; tokens come out at the end of a step.
function tokensAt(run, t) {
  const made = new Array(run.ids.length).fill(0);
  const doneSteps = stepAt(run, t) + (stepAt(run, t) >= 0 && t >= run.end[stepAt(run, t)] ? 1 : 0);
  for (const s of run.spans) {
    if (s.phase === "decode") made[s.request] += Math.max(0, Math.min(s.to, doneSteps) - s.from) * s.tokens;
  }
  for (const e of run.events) if (e.kind === "token" && e.step < doneSteps) made[e.request] += 1;
  return made;
}

// Steps of 1, 2 or 5 × 10^n so that about `wanted` of them fill `range`.
function niceStep(range, wanted) {
  const raw = Math.max(range / Math.max(1, wanted), 1e-3);
  const unit = 10 ** Math.floor(Math.log10(raw));
  const factor = [1, 2, 5, 10].find((f) => f * unit >= raw * 0.999);
  return factor * unit;
}

// The most requests in a step, and the most blocks in use and cached.
const busiest = (run) => {
  let most = 0;
  for (let k = 0; k < run.numSteps; k += 1) most = Math.max(most, PHASES.reduce((sum, p) => sum + run.counts[p][k], 0));
  return most;
};
const fullest = (run) => run.inUse.reduce((most, v, k) => Math.max(most, v + run.cached[k]), 0);

// Top of a strip: the ceiling when it is near what was used, else a little more than what was used.
function stripTop(used, ceiling) {
  if (ceiling && ceiling <= used * 1.5) return Math.max(ceiling, used);
  return Math.max(1, used <= 10 ? used : Math.ceil(used * 1.05));
}
