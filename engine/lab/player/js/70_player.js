// The timeline player, part 7: the clock, the view and the frame loop of one mounted player.

const SPEEDS = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50];
const WANTED_SECONDS = 15; // what one run through should take by default
const REDUCED_STEP_MS = 700; // with reduced motion, "play" turns pages at this pace
const PANEL_PACE_MS = 160; // sentences change at most this often while playing, or nobody could read them

class Player {
  constructor(host) {
    this.host = host;
    this.page = buildPage();
    this.t = 0;
    this.zoom = 1;
    this.viewStart = 0;
    this.playing = false;
    this.follow = true;
    this.ids = [];
    this.motion = globalThis.matchMedia("(prefers-reduced-motion: reduce)");
    attachControls(this);
  }

  // New data, language or theme. Keeps the playhead as long as these are still the same Runs.
  update(data) {
    this.words = new Words(data.text, data.lang);
    this.live = data.live;
    this.runs = data.runs.map(buildRun);
    for (const run of this.runs) run.open = data.live && !run.finishedAt.every(Number.isFinite);
    const ids = data.runs.map((r) => r.run_id);
    const known = this.ids.length > 0 && ids.every((id, i) => i >= this.ids.length || id === this.ids[i]);
    const rebuilt = !known || ids.length !== this.ids.length || this.sections.length !== ids.length;
    this.ids = ids;
    const total = Math.max(0, ...this.runs.map((r) => r.total));
    if (!known) Object.assign(this, { zoom: 1, viewStart: 0, follow: true, chosenSpeed: null, playing: false });
    if (!known) this.awaitsView = data.autoplay && !this.motion.matches;
    if (!known || (this.follow && !this.playing)) this.t = total;
    this.total = total;
    this.t = Math.min(this.t, total);
    const round = niceStep(total * 1.2, 4);
    this.extent = this.live ? Math.max(round, Math.ceil((total * 1.05) / round) * round) : Math.max(total, 1e-3);
    this.stops = stops(this.runs, total);
    this.scale = {
      total,
      batch: stripTop(Math.max(...this.runs.map(busiest)), Math.max(...this.runs.map((r) => r.max_requests))),
      blocks: stripTop(Math.max(...this.runs.map(fullest)), Math.max(...this.runs.map((r) => r.num_blocks))),
    };
    labelPage(this.page, this.words);
    if (rebuilt) this.sections = buildSections(this.page, this.runs, this.words);
    else labelSections(this.sections, this.runs, this.words);
    for (const section of this.sections) section.said = "";
    fillLegend(this.page.legend, this.runs, this.words);
    this.page.difference.textContent = this.live ? "" : differenceWords(this.runs, this.words);
    this.page.texts.hidden = !this.runs.some((r) => r.pieces);
    this.page.scrub.max = String(Math.max(total, 1e-3));
    this.offerSpeeds();
    this.resume();
    this.measure();
  }

  // Effect: starts watching size, visibility and fonts. Idempotent; `rest` undoes it.
  resume() {
    if (!this.host.contains(this.page.root)) this.host.append(this.page.root);
    if (this.sizes) return;
    this.sizes = new ResizeObserver(() => this.page.root.clientWidth !== this.width && this.measure());
    this.sizes.observe(this.page.root);
    this.views = new IntersectionObserver((seen) => {
      if (this.awaitsView && seen.some((s) => s.isIntersecting)) this.play();
    }, { threshold: 0.15 });
    this.views.observe(this.page.root);
    document.fonts?.ready.then(() => this.sizes && this.measure());
  }

  rest() {
    this.sizes?.disconnect();
    this.views?.disconnect();
    this.sizes = null;
    cancelAnimationFrame(this.frame);
    this.frame = null;
    this.playing = false;
  }

  offerSpeeds() {
    const wanted = Math.max(this.total, 1) / 1000 / WANTED_SECONDS;
    const nearest = SPEEDS.reduce((a, b) => (Math.abs(Math.log(b / wanted)) < Math.abs(Math.log(a / wanted)) ? b : a));
    this.speed = this.chosenSpeed ?? nearest;
    const offered = SPEEDS.filter((s) => (s >= 0.1 && s <= 10) || (s >= nearest / 10.1 && s <= nearest * 10.1));
    this.page.speed.replaceChildren(...offered.map((s) => {
      const option = element("option", "", null, { value: s });
      option.textContent = this.words.say("speed_option", { speed: this.words.plain(s) });
      return option;
    }));
    this.page.speed.value = String(this.speed);
  }

  // Sizes everything for the present width and draws the Runs anew.
  measure() {
    const { root, scrub } = this.page;
    this.width = root.clientWidth;
    if (!this.width || !this.runs) return;
    root.classList.toggle("wide", this.width >= 1000);
    this.ink = inks(root);
    for (const name of ["red", "green", "blueEdge", "grey"]) root.style.setProperty(`--${name}`, this.ink[name]);
    this.layoutAll();
    scrub.style.marginLeft = `${this.boxes[0].gutter - 11}px`;
    scrub.style.width = `${this.boxes[0].plot + 22}px`;
    for (const section of this.sections) section.panel.style.minHeight = "";
    this.redraw();
  }

  layoutAll() {
    const probe = document.createElement("canvas").getContext("2d");
    const widest = (run, px) => {
      probe.font = `600 ${px}px ${this.ink.font}`;
      return Math.max(0, ...run.ids.map((id) => probe.measureText(id).width));
    };
    const gutterNeed = Math.max(...this.runs.map((r) => widest(r, this.width < 560 ? 13 : 17)));
    this.boxes = this.runs.map((run, i) => {
      const width = Math.floor(this.sections[i].canvas.parentElement.clientWidth);
      const box = layout(width, run.ids.length, this.runs.length, gutterNeed);
      const ratio = ratioFor(box);
      const { canvas, frame, data } = this.sections[i];
      for (const c of [canvas, frame, data]) {
        c.width = Math.round(box.width * ratio);
        c.height = Math.round(box.height * ratio);
      }
      canvas.style.width = `${box.width}px`;
      canvas.style.height = `${box.height}px`;
      return { ...box, ratio };
    });
  }

  redraw() {
    const span = this.extent / this.zoom;
    this.viewStart = Math.max(0, Math.min(this.viewStart, this.extent - span));
    const note = { merged: false };
    this.paints = this.runs.map((run, i) => {
      const box = this.boxes[i];
      const { ratio } = box;
      const [frame, ctx] = ["frame", "data"].map((name) => {
        const pen = this.sections[i][name].getContext("2d");
        pen.setTransform(ratio, 0, 0, ratio, 0, 0);
        pen.clearRect(0, 0, box.width, box.height);
        return pen;
      });
      const paint = {
        ctx, box, ratio, run, note, ink: this.ink, words: this.words, t0: this.viewStart, t1: this.viewStart + span,
        x: (t) => box.gutter + ((t - this.viewStart) / span) * box.plot,
        hatches: { grey: hatch(ctx, this.ink.grey, ratio, 1), blue: hatch(ctx, this.ink.blueEdge, ratio, -1) },
      };
      drawAxis({ ...paint, ctx: frame });
      drawRowNames({ ...paint, ctx: frame });
      drawStripFrames({ ...paint, ctx: frame }, this.scale);
      drawStrips(paint, this.scale);
      drawRows(paint);
      drawEnd(paint, this.scale, this.live);
      return paint;
    });
    this.page.note.textContent = note.merged ? this.words.text.ticks_merged : "";
    this.page.buttons.zoom_out.disabled = this.zoom <= 1;
    this.page.buttons.zoom_in.disabled = this.zoom >= this.deepest();
    this.show();
  }

  // Zoom in until about four steps fill the width.
  deepest() {
    return 2 ** Math.max(0, Math.ceil(Math.log2(Math.max(1, ...this.runs.map((r) => r.numSteps)) / 4)));
  }

  // Draws the present moment: playhead, readout, sentences.
  show(now = performance.now()) {
    if (!this.paints) return;
    const span = this.extent / this.zoom;
    if (this.t < this.viewStart || this.t > this.viewStart + span) {
      this.viewStart = this.t - span * 0.15;
      this.redraw();
      return;
    }
    const { words, page } = this;
    this.paints.forEach((paint, i) => drawFrameAt(this.sections[i], paint, this.t));
    const values = { now: words.clock(this.t, this.total), total: words.clock(this.total, this.total) };
    page.readout.textContent = words.say("readout", values);
    page.scrub.value = String(this.t);
    page.scrub.setAttribute("aria-valuetext", words.say("scrub_value", values));
    const label = this.playing ? "pause" : "play";
    if (page.shownPlay !== label + words.lang) {
      page.shownPlay = label + words.lang;
      page.playText.textContent = words.text[label];
      page.buttons.play.firstChild.replaceWith(icon(label));
    }
    page.status.textContent = this.live ? words.text[this.follow ? "follow" : "follow_off"] : "";
    if (this.playing && now - (this.saidAt ?? 0) < PANEL_PACE_MS) return;
    this.saidAt = now;
    this.tell();
  }

  tell() {
    this.runs.forEach((run, i) => {
      const section = this.sections[i];
      const { state, k } = moment(run, this.t);
      const said = `${state} ${k}`;
      if (said === section.said) return;
      section.said = said;
      fillPanel(section.panel, describe(run, this.t, this.words));
      const tallest = Math.max(section.panel.offsetHeight, parseFloat(section.panel.style.minHeight) || 0);
      section.panel.style.minHeight = `${tallest}px`; // it grows, it never jumps
    });
    if (!this.page.texts.hidden && this.page.texts.open) fillTexts(this.page.textsBody, this.runs, this.t);
  }

  play() {
    this.awaitsView = false;
    if (this.t >= this.total && !this.live) this.t = 0;
    this.playing = true;
    this.last = null;
    this.saidAt = 0;
    this.show();
    this.frame = requestAnimationFrame((now) => this.tick(now));
  }

  pause() {
    this.awaitsView = false;
    if (!this.playing) return;
    this.playing = false;
    cancelAnimationFrame(this.frame);
    this.show();
  }

  tick(now) {
    if (!this.playing) return;
    const passed = this.last === null ? 0 : Math.min(now - this.last, 100); // a hidden tab does not jump ahead
    if (!this.motion.matches) {
      this.t = Math.min(this.total, this.t + passed * this.speed);
      this.last = now;
    } else if (this.last === null || now - this.last >= REDUCED_STEP_MS) {
      if (this.last !== null) this.t = this.stops.find((s) => s > this.t + 1e-6) ?? this.total;
      this.last = now;
    }
    if (this.t >= this.total) {
      this.playing = false;
      this.follow = true;
    }
    this.show(now);
    if (this.playing) this.frame = requestAnimationFrame((next) => this.tick(next));
  }

  // Moves the playhead by hand: stops playing, and says the new moment to a screen reader.
  moveTo(t) {
    this.pause();
    this.t = Math.max(0, Math.min(this.total, t));
    this.follow = this.t >= this.total;
    this.show();
    clearTimeout(this.announcing);
    this.announcing = setTimeout(() => {
      this.page.announce.textContent = this.runs.map((run) => {
        const said = describe(run, this.t, this.words);
        const head = [this.runs.length > 1 ? `${run.label}:` : "", said.heading, said.time].filter(Boolean).join(" ");
        return `${head}. ${said.lines.map((l) => l.text).join(this.words.gap)}`;
      }).join(" ");
    }, 250);
  }

  stepBy(direction) {
    const near = 1e-6;
    const next = direction > 0
      ? this.stops.find((s) => s > this.t + near) ?? this.total
      : this.stops.findLast((s) => s < this.t - near) ?? 0;
    this.moveTo(next);
  }

  setSpeed(value) {
    this.chosenSpeed = value;
    this.speed = value;
    this.page.speed.value = String(value);
  }

  faster(direction) {
    const values = [...this.page.speed.options].map((o) => Number(o.value));
    const i = values.indexOf(this.speed) + direction;
    if (i < 0 || i >= values.length) return;
    this.setSpeed(values[i]);
    this.page.announce.textContent = this.words.say("speed_said", { speed: this.words.plain(values[i]) });
  }

  zoomBy(factor) {
    this.zoom = Math.max(1, Math.min(this.deepest(), this.zoom * factor));
    this.viewStart = this.t - this.extent / this.zoom / 2;
    this.redraw();
  }
}
