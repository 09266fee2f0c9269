// The timeline player, part 3: where things stand, and the inks they are drawn with.

const MIN_TICK_PX = 2.5; // ticks closer than this would be one grey mass: they are left to the zoom, and a note says so
const MAX_LAYER_PIXELS = 12e6; // device pixels of one drawing; beyond it the resolution is lowered, not the content

// All lengths in CSS pixels. The rows shrink with their number; text that no longer fits is left out, bars never are.
function layout(width, numRows, numRuns, longestId) {
  const narrow = width < 560;
  const font = narrow ? 13 : 17;
  const crowd = numRuns > 2; // so many pictures are seen together only if each is small
  const tall = numRuns === 1 ? 44 : 37;
  const rowHeight = crowd && numRows <= 32 ? 18 : numRows <= 8 ? tall : numRows <= 16 ? 30 : numRows <= 32 ? 22 : numRows <= 64 ? 16 : 11;
  const roomy = rowHeight >= 36; // room for a line of text above the bar
  const barTop = roomy ? 15 : 2;
  const gutter = Math.min(narrow ? 64 : 120, Math.max(narrow ? 38 : 52, 14 + longestId));
  const stripHeight = crowd ? 26 : narrow ? 38 : 42;
  const titleHeight = narrow ? 20 : 24;
  const rowsTop = 16; // the playhead's handle
  const batchTop = rowsTop + numRows * rowHeight + titleHeight + 4;
  const blocksTop = batchTop + stripHeight + titleHeight;
  const axisTop = blocksTop + stripHeight;
  return {
    width, narrow, font, gutter, plot: Math.max(40, width - gutter - 24), rowsTop, rowHeight, roomy, barTop,
    barHeight: rowHeight - barTop - (roomy ? 4 : 2), numRows, batchTop, blocksTop, stripHeight, titleHeight, axisTop,
    height: axisTop + (narrow ? 24 : 28),
    small: narrow ? 12 : 15,
    rowFont: Math.max(8, Math.min(font, rowHeight - 3)),
  };
}

function ratioFor(box) {
  const wanted = Math.min(globalThis.devicePixelRatio || 1, 3);
  const area = box.width * box.height;
  return Math.min(wanted, Math.max(1, Math.sqrt(MAX_LAYER_PIXELS / area)));
}

// Okabe-Ito hues on the theme's own paper; every phase also has its own pattern or mark.
function inks(host) {
  const style = getComputedStyle(host);
  const read = (name, fallback) => {
    const value = style.getPropertyValue(name).trim();
    return value && value !== "unset" ? value : fallback;
  };
  const paper = read("--st-background-color", "#ffffff");
  const dark = luminance(paper) < 0.2;
  return {
    dark, paper,
    text: read("--st-text-color", dark ? "#fafafa" : "#262730"),
    panel: read("--st-secondary-background-color", dark ? "#262730" : "#f0f2f6"),
    font: read("--st-font", "sans-serif"),
    blue: "#0072B2",
    blueEdge: dark ? "#56B4E9" : "#0072B2",
    orange: "#E69F00",
    orangeEdge: dark ? "#E69F00" : "#8F6200",
    tick: dark ? "#3A2800" : "#5C3F00",
    grey: dark ? "#A8A8A8" : "#6B6B6B",
    red: dark ? "#FF7A33" : "#D55E00",
    green: dark ? "#2BC79A" : "#007A59",
  };
}

// Relative luminance of any CSS colour, read back through a canvas so that every notation works.
function luminance(color) {
  const probe = document.createElement("canvas").getContext("2d");
  probe.fillStyle = "#ffffff";
  probe.fillStyle = color;
  const hex = probe.fillStyle;
  const parts = hex.startsWith("#")
    ? [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16))
    : hex.match(/[\d.]+/g).slice(0, 3).map(Number);
  const [r, g, b] = parts.map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

// Diagonal hatching that keeps its pitch at any device pixel ratio.
function hatch(ctx, color, ratio, leaning) {
  const pitch = 7;
  const size = Math.max(4, Math.round(pitch * ratio));
  const tile = document.createElement("canvas");
  tile.width = size;
  tile.height = size;
  const pen = tile.getContext("2d");
  pen.strokeStyle = color;
  pen.lineWidth = size / 4;
  pen.beginPath();
  for (const shift of [-size, 0, size]) {
    pen.moveTo(shift, leaning > 0 ? size : 0);
    pen.lineTo(shift + size, leaning > 0 ? 0 : size);
  }
  pen.stroke();
  const pattern = ctx.createPattern(tile, "repeat");
  pattern.setTransform(new DOMMatrix().scale(1 / ratio));
  return pattern;
}
