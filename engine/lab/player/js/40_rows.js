// The timeline player, part 4: the rows. Draws one Run onto a canvas context in CSS pixels; changes nothing else.

// `paint` = {ctx, box, ink, words, run, x(t), t0, t1, hatches, note, above}; t0..t1 is the visible stretch of time.
function drawRows(paint) {
  const { ctx, box, run } = paint;
  ctx.save();
  ctx.textBaseline = "middle";
  ctx.beginPath();
  ctx.rect(box.gutter - 1, 0, box.plot + 23, box.axisTop);
  ctx.clip();
  paint.above = run.ids.map(() => []); // per row the [left, right] of the labels that stand above the bars
  const waits = run.waitBars.filter((bar) => visible(paint, bar.t0, bar.t1));
  for (const bar of waits) drawWait(paint, bar);
  for (const span of run.spans) {
    const t0 = run.begin[span.from];
    const t1 = run.end[span.to - 1];
    if (!visible(paint, t0, t1)) continue;
    if (span.phase === "decode") drawDecode(paint, span, t0, t1);
    else if (span.phase === "padding") drawPadding(paint, span, t0, t1);
    else drawChunk(paint, span, t0, t1);
  }
  for (const bar of waits) drawReason(paint, bar);
  for (const event of run.events) drawMark(paint, event);
  ctx.restore();
}

const visible = (paint, t0, t1) => t1 >= paint.t0 && t0 <= paint.t1;

function barOf(paint, request, t0, t1) {
  const { box } = paint;
  const left = Math.max(paint.x(t0), box.gutter - 4);
  const right = Math.min(paint.x(t1), box.gutter + box.plot);
  const top = box.rowsTop + request * box.rowHeight + box.barTop;
  return { left, top, width: Math.max(right - left, 1), height: box.barHeight };
}

function drawRowNames({ ctx, box, ink, run }) {
  ctx.textBaseline = "middle";
  ctx.textAlign = "right";
  const every = Math.ceil(10 / box.rowHeight);
  run.ids.forEach((id, request) => {
    const y = box.rowsTop + request * box.rowHeight + box.barTop + box.barHeight / 2;
    ctx.strokeStyle = ink.text;
    ctx.globalAlpha = 0.12;
    ctx.lineWidth = 1;
    line(ctx, box.gutter, y, box.gutter + box.plot, y);
    ctx.globalAlpha = 1;
    if (request % every) return;
    ctx.fillStyle = ink.text;
    ctx.font = `600 ${box.rowFont}px ${ink.font}`;
    ctx.fillText(fitted(ctx, id, box.gutter - 12), box.gutter - 8, y);
  });
}

function drawWait(paint, bar) {
  const { ctx, ink } = paint;
  const r = barOf(paint, bar.request, bar.t0, bar.t1);
  ctx.fillStyle = ink.paper;
  ctx.fillRect(r.left, r.top, r.width, r.height);
  ctx.strokeStyle = ink.text;
  ctx.lineWidth = 1.5;
  if (r.width > 3) ctx.strokeRect(r.left + 0.75, r.top + 0.75, r.width - 1.5, r.height - 1.5);
  else line(ctx, r.left, r.top, r.left, r.top + r.height);
}

// The recorded reason in words: in the bar if it fits, above it if that place is free, else left to the sentence.
function drawReason(paint, bar) {
  const { ctx, ink, box, words } = paint;
  const r = barOf(paint, bar.request, bar.t0, bar.t1);
  if (!bar.why || r.height < 10) return;
  const left = Math.max(r.left + (bar.preempted ? markRadius(box) + 2 : 0), box.gutter);
  const width = Math.min(r.left + r.width, box.gutter + box.plot) - left;
  ctx.font = `${Math.min(box.small, r.height - 1)}px ${ink.font}`;
  ctx.fillStyle = ink.text;
  ctx.textAlign = "left";
  const short = words.say(`short_${bar.why}`);
  const inside = [words.say(`why_${bar.why}`), short].find((t) => ctx.measureText(t).width <= width - 12);
  if (inside) ctx.fillText(inside, left + 6, r.top + r.height / 2 + 0.5);
  else if (width >= 24) labelAbove(paint, bar.request, short, left, r.top);
}

// Writes `text` above a bar, moved right by at most its own width to stand clear of other labels; else not at all.
function labelAbove(paint, row, text, wanted, top) {
  const { ctx, box } = paint;
  if (!box.roomy) return;
  const width = ctx.measureText(text).width;
  let x = Math.max(box.gutter, wanted);
  const clash = () => paint.above[row].find(([l, r]) => x < r + 6 && x + width + 6 > l);
  for (let other = clash(); other && x - wanted <= width; other = clash()) x = other[1] + 6;
  if (x - wanted > width || x + width > box.gutter + box.plot + 20) return;
  paint.above[row].push([x, x + width]);
  ctx.textAlign = "left";
  ctx.fillText(text, x, top - 7);
}

function drawDecode(paint, span, t0, t1) {
  const { ctx, ink, run } = paint;
  const r = barOf(paint, span.request, t0, t1);
  ctx.fillStyle = ink.orange;
  ctx.fillRect(r.left, r.top, r.width, r.height);
  ctx.strokeStyle = ink.orangeEdge;
  ctx.lineWidth = 1;
  if (r.width > 3) ctx.strokeRect(r.left + 0.5, r.top + 0.5, r.width - 1, r.height - 1);
  const pitch = (paint.x(t1) - paint.x(t0)) / (span.to - span.from);
  if (pitch < MIN_TICK_PX) {
    paint.note.merged = true;
    return;
  }
  ctx.strokeStyle = ink.tick;
  ctx.lineWidth = Math.min(1.5, pitch / 3);
  ctx.beginPath();
  for (let k = Math.max(span.from, stepAt(run, paint.t0)); k < span.to && run.end[k] <= paint.t1 + 1e-6; k += 1) {
    const x = paint.x(run.end[k]) - ctx.lineWidth / 2;
    ctx.moveTo(x, r.top);
    ctx.lineTo(x, r.top + r.height);
  }
  ctx.stroke();
}

function drawPadding(paint, span, t0, t1) {
  const { ctx, ink, hatches } = paint;
  const r = barOf(paint, span.request, t0, t1);
  ctx.fillStyle = ink.paper;
  ctx.fillRect(r.left, r.top, r.width, r.height);
  ctx.fillStyle = hatches.grey;
  ctx.fillRect(r.left, r.top, r.width, r.height);
  ctx.strokeStyle = ink.grey;
  ctx.lineWidth = 1;
  if (r.width > 3) ctx.strokeRect(r.left + 0.5, r.top + 0.5, r.width - 1, r.height - 1);
}

// A prefill or recompute chunk with its token count: inside if it fits, else above, else left to the sentence.
function drawChunk(paint, span, t0, t1) {
  const { ctx, ink, box, hatches } = paint;
  const r = barOf(paint, span.request, t0, t1);
  const solid = span.phase === "prefill";
  ctx.fillStyle = solid ? ink.blue : ink.paper;
  ctx.fillRect(r.left, r.top, r.width, r.height);
  if (!solid) {
    ctx.fillStyle = hatches.blue;
    ctx.fillRect(r.left, r.top, r.width, r.height);
  }
  ctx.strokeStyle = ink.blueEdge;
  ctx.lineWidth = 1;
  if (r.width > 3) ctx.strokeRect(r.left + 0.5, r.top + 0.5, r.width - 1, r.height - 1);
  if (box.rowHeight < 14) return;
  const text = String(span.tokens);
  ctx.font = `600 ${Math.min(box.small, r.height)}px ${ink.font}`;
  const needed = ctx.measureText(text).width;
  ctx.textAlign = "left";
  const left = Math.max(r.left, box.gutter);
  if (needed + 6 <= r.left + r.width - left) {
    const x = (left + r.left + r.width - needed) / 2;
    if (!solid) {
      ctx.fillStyle = ink.paper;
      ctx.fillRect(x - 3, r.top + 3, needed + 6, r.height - 6);
    }
    ctx.fillStyle = solid ? "#ffffff" : ink.text;
    ctx.fillText(text, x, r.top + r.height / 2 + 0.5);
  } else if (r.left >= box.gutter - 1) {
    ctx.fillStyle = ink.text;
    labelAbove(paint, span.request, text, r.left + r.width / 2 - needed / 2, r.top);
  }
}

const markRadius = (box) => Math.max(4, Math.min(9, box.barHeight / 2));

// Preempted = red cross at the decision, finished = check mark after the last token, aborted = red square.
function drawMark(paint, event) {
  const { ctx, ink, box, run } = paint;
  const ends = FINISHES.has(event.kind);
  if (!ends && event.kind !== "preempted") return;
  const t = ends ? run.end[event.step] : run.begin[event.step];
  if (!visible(paint, t, t)) return;
  const radius = markRadius(box);
  let x = paint.x(t) + (ends ? radius + 3 : 0);
  if (x + radius > box.gutter + box.plot + 22) x = paint.x(t) - radius - 3;
  const y = box.rowsTop + event.request * box.rowHeight + box.barTop + box.barHeight / 2;
  ctx.fillStyle = ink.paper;
  ctx.strokeStyle = event.kind === "preempted" || event.kind === "abort" ? ink.red : ink.green;
  ctx.lineWidth = Math.max(1.5, radius / 3.6);
  ctx.lineCap = "round";
  ctx.beginPath();
  ctx.arc(x, y, radius, 0, 2 * Math.PI);
  ctx.fill();
  ctx.stroke();
  const s = radius * 0.45;
  ctx.beginPath();
  if (event.kind === "preempted") {
    ctx.moveTo(x - s, y - s); ctx.lineTo(x + s, y + s);
    ctx.moveTo(x + s, y - s); ctx.lineTo(x - s, y + s);
  } else if (event.kind === "abort") {
    ctx.rect(x - s, y - s, 2 * s, 2 * s);
  } else {
    ctx.moveTo(x - s, y); ctx.lineTo(x - s / 4, y + s * 0.8); ctx.lineTo(x + s, y - s * 0.8);
  }
  ctx.stroke();
  ctx.lineCap = "butt";
}

function line(ctx, x0, y0, x1, y1) {
  ctx.beginPath();
  ctx.moveTo(x0, y0);
  ctx.lineTo(x1, y1);
  ctx.stroke();
}

// `text`, cut with an ellipsis where it is wider than `width`.
function fitted(ctx, text, width) {
  if (ctx.measureText(text).width <= width) return text;
  let cut = text.length - 1;
  while (cut > 1 && ctx.measureText(`${text.slice(0, cut)}…`).width > width) cut -= 1;
  return `${text.slice(0, cut)}…`;
}
