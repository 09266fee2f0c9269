// The timeline player, part 8: hands on the player (buttons, keys, pointer), and the one export. The one module-level
// state is the map from a mount to its player: Streamlit calls the export again for every change of data or theme.

const players = new WeakMap();

function act(player, name) {
  if (name === "play") (player.playing ? player.pause() : player.play());
  else if (name === "step_back") player.stepBy(-1);
  else if (name === "step_forward") player.stepBy(1);
  else if (name === "zoom_in") player.zoomBy(2);
  else if (name === "zoom_out") player.zoomBy(0.5);
}

function attachControls(player) {
  const { root, scrub, speed, runs, texts } = player.page;
  root.addEventListener("click", (e) => {
    const button = e.target.closest("button[data-action]");
    if (button) act(player, button.dataset.action);
  });
  root.addEventListener("keydown", (e) => onKey(player, e));
  scrub.addEventListener("input", () => player.moveTo(Number(scrub.value)));
  speed.addEventListener("change", () => player.setSpeed(Number(speed.value)));
  texts.addEventListener("toggle", () => texts.open && fillTexts(player.page.textsBody, player.runs, player.t));
  const seek = (e) => {
    const i = player.sections.findIndex((s) => s.canvas === e.target);
    if (i < 0) return;
    const box = player.boxes[i];
    const share = (e.clientX - e.target.getBoundingClientRect().left - box.gutter) / box.plot;
    player.moveTo(player.viewStart + share * (player.extent / player.zoom));
  };
  runs.addEventListener("pointerdown", (e) => {
    if (e.target.tagName !== "CANVAS" || e.button !== 0) return;
    e.target.setPointerCapture(e.pointerId);
    root.focus({ preventScroll: true });
    seek(e);
  });
  runs.addEventListener("pointermove", (e) => {
    if (e.target.tagName === "CANVAS" && e.target.hasPointerCapture(e.pointerId)) seek(e);
  });
}

// Only keys pressed while the player has the focus arrive here; a control keeps the keys it needs itself.
function onKey(player, e) {
  if (e.ctrlKey || e.metaKey || e.altKey) return;
  const tag = e.target.tagName;
  if (tag === "SELECT" && e.key !== "+" && e.key !== "-") return;
  if ((tag === "BUTTON" || tag === "SUMMARY") && (e.key === " " || e.key === "Enter")) return;
  const keys = {
    " ": () => act(player, "play"), ArrowRight: () => player.stepBy(1), ArrowLeft: () => player.stepBy(-1),
    Home: () => player.moveTo(0), End: () => player.moveTo(player.total),
    "+": () => player.faster(1), "=": () => player.faster(1), "-": () => player.faster(-1),
  };
  const action = keys[e.key];
  if (!action) return;
  e.preventDefault();
  e.stopPropagation();
  action();
}

export default function timeline(component) {
  const host = component.parentElement.querySelector(".player");
  if (!host || !component.data) return undefined;
  let player = players.get(host);
  if (!player) {
    player = new Player(host);
    players.set(host, player);
  }
  player.calls = (player.calls ?? 0) + 1;
  const call = player.calls;
  player.update(component.data);
  // A call that was overtaken by a newer one is cleaned up while the player lives on.
  return () => {
    if (player.calls === call) player.rest();
  };
}
