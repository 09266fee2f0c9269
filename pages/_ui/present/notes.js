// The notes window: marks the step that the stage is at, follows it to another lesson, moves it, and keeps the time.

const CHANNEL = "token-by-token-present";
const START = "token-by-token-present-start";

export default function notes(component) {
  const { parentElement, data } = component;
  const bar = parentElement.querySelector(".bar");
  const { words } = data;
  const channel = new BroadcastChannel(CHANNEL);
  let now = "";

  const mark = (section) => {
    now = section;
    document.querySelectorAll("[data-present-now]").forEach((step) => step.removeAttribute("data-present-now"));
    const step = document.querySelector(`.st-key-note_step_${CSS.escape(section)}`);
    if (!step) return;
    step.setAttribute("data-present-now", "");
    step.scrollIntoView({ block: "center" });
  };
  channel.onmessage = ({ data: message }) => {
    if (!message.path) return;
    if (message.path !== data.path) {
      const there = new URL(window.location.href);
      there.pathname = there.pathname.replace(/[^/]*$/, message.path);
      window.location.assign(there.href);
      return;
    }
    bar.querySelector(".place").textContent = `${message.index + 1} / ${message.count}`;
    mark(message.section);
  };

  const clock = bar.querySelector(".clock");
  const start = () => Number(sessionStorage.getItem(START)) || Date.now();
  const draw = () => {
    const seconds = Math.floor((Date.now() - start()) / 1000);
    clock.textContent = `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
  };
  const restart = () => {
    sessionStorage.setItem(START, String(Date.now()));
    draw();
  };
  if (!sessionStorage.getItem(START)) restart();
  for (const [name, text] of [["previous", words.previous], ["next", words.next], ["restart", words.restart]]) {
    const button = bar.querySelector(`.${name}`);
    button.setAttribute("aria-label", text);
    button.title = text;
  }
  bar.querySelector(".restart").textContent = words.restart;
  bar.querySelector(".previous").onclick = () => channel.postMessage({ move: -1 });
  bar.querySelector(".next").onclick = () => channel.postMessage({ move: 1 });
  bar.querySelector(".restart").onclick = restart;
  draw();
  // The stage may not be listening yet when it is asked, nor the step be drawn when the answer comes.
  const catchUp = () => {
    if (!now) channel.postMessage({ ask: true });
    else if (!document.querySelector("[data-present-now]")) mark(now);
  };
  const ticking = setInterval(() => {
    draw();
    catchUp();
  }, 1000);
  channel.postMessage({ ask: true });
  return () => {
    clearInterval(ticking);
    channel.close();
  };
}
