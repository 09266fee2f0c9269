// The timeline player, part 5: the two strips, the axis, the end of the Run, and the moving parts over them.

const STACK = ["padding", "decode", "recompute", "prefill"]; // bottom to top

// `scale` = {batch, blocks, total}: the same for both Runs, so that heights can be compared.
function drawStrips(paint, scale) {
  drawBatch(paint, scale.batch);
  drawBlocks(paint, scale.blocks);
}

// What does not depend on the playhead: titles, numbers, ceilings.
function drawStripFrames(paint, scale) {
  const { box, run, words } = paint;
  const limit = run.max_requests ? ` (${words.say("batch_limit", { limit: run.max_requests })})` : "";
  drawFrame(paint, box.batchTop, [words.say("batch_title") + limit], scale.batch);
  const size = words.say("blocks_limit", { total: words.whole(run.num_blocks), size: run.block_size });
  const dotted = run.cached.some((c) => c > 0) ? ` · ${words.say("blocks_cached")}` : "";
  const brief = words.say("blocks_of", { total: words.whole(run.num_blocks) });
  const titles = [size, brief].map((within) => `${words.say("blocks_title")} (${within})${dotted}`);
  drawFrame(paint, box.blocksTop, titles, scale.blocks);
  drawCeiling(paint, box.batchTop, run.max_requests, scale.batch);
  drawCeiling(paint, box.blocksTop, run.num_blocks, scale.blocks);
}

// The first of the titles that fits is written; the last is cut if it must be.
function drawFrame({ ctx, box, ink }, top, titles, most) {
  ctx.textBaseline = "alphabetic";
  ctx.textAlign = "left";
  ctx.fillStyle = ink.text;
  ctx.font = `${box.small}px ${ink.font}`;
  const title = titles.find((t) => ctx.measureText(t).width <= box.plot) ?? titles[titles.length - 1];
  ctx.fillText(fitted(ctx, title, box.plot + 20), box.gutter, top - 6);
  ctx.textAlign = "right";
  ctx.fillText(String(most), box.gutter - 8, top + box.small * 0.8);
  ctx.fillText("0", box.gutter - 8, top + box.stripHeight - 1);
  ctx.strokeStyle = ink.text;
  ctx.globalAlpha = 0.35;
  ctx.lineWidth = 1;
  line(ctx, box.gutter, top + box.stripHeight, box.gutter + box.plot, top + box.stripHeight);
  ctx.globalAlpha = 1;
}

// A ceiling is a line, drawn where it lies within the strip; the title names its value in any case.
function drawCeiling({ ctx, box, ink }, top, value, most) {
  if (!value || value > most) return;
  const y = top + box.stripHeight * (1 - value / most) + 0.5;
  ctx.strokeStyle = ink.text;
  ctx.lineWidth = 1;
  line(ctx, box.gutter, y, box.gutter + box.plot, y);
}

// Runs of steps with equal value as [first step, t0, t1]; pauses break a run.
function* stretches(paint, same) {
  const { run } = paint;
  let first = Math.max(0, stepAt(run, paint.t0));
  for (let k = first; k < run.numSteps && run.begin[first] <= paint.t1; k += 1) {
    const last = k + 1 >= run.numSteps;
    const pause = !last && run.begin[k + 1] - run.end[k] > IDLE_GAP_MS;
    if (!last && !pause && same(first, k + 1)) continue;
    yield [first, run.begin[first], last || pause ? run.end[k] : run.begin[k + 1]];
    first = k + 1;
  }
}

function clipToPlot({ ctx, box }) {
  ctx.save();
  ctx.beginPath();
  ctx.rect(box.gutter, 0, box.plot + 1, box.height);
  ctx.clip();
}

function drawBatch(paint, most) {
  const { ctx, box, ink, hatches, run } = paint;
  const fill = { padding: hatches.grey, decode: ink.orange, recompute: hatches.blue, prefill: ink.blue };
  const unit = box.stripHeight / most;
  clipToPlot(paint);
  for (const [k, t0, t1] of stretches(paint, (a, b) => STACK.every((p) => run.counts[p][a] === run.counts[p][b]))) {
    let y = box.batchTop + box.stripHeight;
    for (const phase of STACK) {
      const height = run.counts[phase][k] * unit;
      if (!height) continue;
      y -= height;
      ctx.fillStyle = fill[phase];
      ctx.fillRect(paint.x(t0), y, Math.max(0.6, paint.x(t1) - paint.x(t0)), height);
    }
  }
  ctx.restore();
}

function drawBlocks(paint, most) {
  const { ctx, box, ink, run } = paint;
  const bottom = box.blocksTop + box.stripHeight;
  const y = (value) => bottom - (box.stripHeight * value) / most;
  clipToPlot(paint);
  ctx.strokeStyle = ink.text;
  const same = (a, b) => run.inUse[a] === run.inUse[b] && run.cached[a] === run.cached[b];
  for (const [k, t0, t1] of stretches(paint, same)) {
    const [left, right] = [paint.x(t0), paint.x(t1)];
    ctx.fillStyle = ink.text;
    ctx.globalAlpha = 0.3;
    ctx.fillRect(left, y(run.inUse[k]), right - left, bottom - y(run.inUse[k]));
    ctx.globalAlpha = 1;
    ctx.lineWidth = 2;
    line(ctx, left, y(run.inUse[k]), right, y(run.inUse[k]));
    if (!run.cached[k]) continue;
    ctx.setLineDash([2, 3]);
    line(ctx, left, y(run.inUse[k] + run.cached[k]), right, y(run.inUse[k] + run.cached[k]));
    ctx.setLineDash([]);
  }
  ctx.restore();
}

function drawAxis(paint) {
  const { ctx, box, ink, words } = paint;
  const step = niceStep(paint.t1 - paint.t0, box.plot / (box.narrow ? 75 : 110));
  ctx.font = `${box.small}px ${ink.font}`;
  ctx.textBaseline = "top";
  ctx.textAlign = "right";
  ctx.fillStyle = ink.text;
  ctx.fillText("ms", box.gutter - 8, box.axisTop + 7);
  ctx.strokeStyle = ink.text;
  ctx.lineWidth = 1;
  for (let i = Math.max(0, Math.ceil(paint.t0 / step - 1e-6)); i * step <= paint.t1 + 1e-6; i += 1) {
    const x = paint.x(i * step);
    ctx.globalAlpha = 0.13;
    line(ctx, x, box.rowsTop, x, box.axisTop);
    ctx.globalAlpha = 0.6;
    line(ctx, x, box.axisTop, x, box.axisTop + 5);
    ctx.globalAlpha = 1;
    const text = words.axis(i * step, step);
    const half = ctx.measureText(text).width / 2;
    ctx.textAlign = "center";
    ctx.fillText(text, Math.min(x, box.width - half - 1), box.axisTop + 7);
  }
}

// The end of the Run, and in the faster of two how much sooner it came.
function drawEnd(paint, scale, live) {
  const { ctx, box, ink, run, words } = paint;
  if (live || !run.numSteps || !visible(paint, run.total, run.total)) return;
  const x = paint.x(run.total);
  ctx.strokeStyle = ink.text;
  ctx.lineWidth = 2;
  line(ctx, x, box.rowsTop - 2, x, box.axisTop);
  const gap = scale.total - run.total;
  if (Math.round(gap) <= 0) return;
  const right = Math.min(paint.x(scale.total), box.gutter + box.plot);
  const text = words.say("sooner", { ms: words.whole(gap) });
  ctx.font = `600 ${box.font}px ${ink.font}`;
  const room = right - x;
  if (room < ctx.measureText(text).width + 16) return;
  const y = box.batchTop + box.stripHeight / 2 + box.font * 0.6;
  ctx.fillStyle = ink.text;
  ctx.textAlign = "center";
  ctx.textBaseline = "alphabetic";
  ctx.fillText(text, x + room / 2, y - 8);
  ctx.lineWidth = 1.5;
  line(ctx, x + 4, y, right - 2, y);
  for (const [tip, side] of [[x + 4, 1], [right - 2, -1]]) {
    line(ctx, tip, y, tip + side * 7, y - 4);
    line(ctx, tip, y, tip + side * 7, y + 4);
  }
}

// Per frame: the frame as it is, the data pale where the playhead has not been, the running step, and the playhead.
function drawFrameAt(section, paint, t) {
  const { canvas, frame, data } = section;
  const { box, ink, run, ratio } = paint;
  const ctx = canvas.getContext("2d");
  const px = (v) => Math.round(v * ratio);
  const now = moment(run, t);
  const been = now.state === "done" ? data.width : px(paint.x(t)); // the last check marks stand beyond the end of time
  const cut = Math.max(px(box.gutter), Math.min(been, data.width));
  ctx.setTransform(1, 0, 0, 1, 0, 0);
  ctx.clearRect(0, 0, canvas.width, canvas.height);
  ctx.drawImage(frame, 0, 0);
  if (cut > 0) ctx.drawImage(data, 0, 0, cut, data.height, 0, 0, cut, data.height);
  if (cut < data.width) {
    const rest = data.width - cut;
    ctx.globalAlpha = 0.3;
    ctx.drawImage(data, cut, 0, rest, data.height, cut, 0, rest, data.height);
    ctx.globalAlpha = 1;
  }
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  if (now.state === "step") {
    const left = Math.max(box.gutter, paint.x(run.begin[now.k]));
    ctx.fillStyle = ink.text;
    ctx.globalAlpha = 0.12;
    ctx.fillRect(left, box.rowsTop, Math.max(1, paint.x(run.end[now.k]) - left), box.axisTop - box.rowsTop);
    ctx.globalAlpha = 1;
  }
  drawPlayhead(ctx, box, ink, paint.x(t));
}

function drawPlayhead(ctx, box, ink, x) {
  if (x < box.gutter - 1 || x > box.width) return;
  ctx.strokeStyle = ink.text;
  ctx.fillStyle = ink.text;
  ctx.lineWidth = 2.5;
  line(ctx, x, 8, x, box.axisTop + 4);
  ctx.beginPath();
  ctx.moveTo(x - 8, 0);
  ctx.lineTo(x + 8, 0);
  ctx.lineTo(x, 13);
  ctx.fill();
}
