// The front page: tokens on the circle, and the same tokens as lines against time.
// The motion is computed as it is shown, by playground/dynamics.js.
(() => {
  "use strict";

  const TOKENS = 110;
  const BETA = 25;
  const SECONDS = 20; // for all of time
  const PAUSE = 4; // more seconds, before the next start
  // The axis of time: log10(1 + t) grows from 0 to EARLY in the first part, to LATE in the rest.
  const [PART, EARLY, LATE] = [0.45, 2, 20];
  const TICKS = [0, 1, 2, 5, 10, 15, 20];
  const FRAME_BUDGET = 9; // milliseconds of computing in a frame
  const { FIRST, cividis, power, star } = globalThis.csaDrawing;
  const INK = "#222832";
  const SOFT = "#56606f";
  const start = (root) => {
    const canvas = root.querySelector("canvas");
    const button = root.querySelector("button");
    const link = root.querySelector("a");
    const context = canvas.getContext("2d");
    const system = { d: 2, Q: [1, 0, 0, 1], K: [1, 0, 0, 1], V: [1, 0, 0, 1], beta: BETA, causal: true };
    for (const name of ["Q", "K", "V"]) system[name] = Float64Array.from(system[name]);
    let seed = 1;
    const river = document.createElement("canvas"); // the lines so far
    const ink = river.getContext("2d");
    let run, lines, place, rest, box;
    let playing = false;
    let visible = true;
    let before = null;
    let pending = 0;

    // the brightest yellow is too pale on white
    const shades = Array.from({ length: TOKENS }, (_, k) => (k === 0 ? FIRST : cividis((0.92 * k) / TOKENS)));
    // The whole of time on one axis: place 0 is t = 0, place 1 the end.
    const decadesAt = (p) => (p < PART ? (p / PART) * EARLY : EARLY + ((p - PART) / (1 - PART)) * (LATE - EARLY));
    const placeOf = (c) => (c < EARLY ? (c / EARLY) * PART : PART + ((c - EARLY) / (LATE - EARLY)) * (1 - PART));
    const timeAt = (p) => Math.pow(10, decadesAt(p)) - 1;
    // Angles from the first token, in (-pi, pi]
    const angles = () => {
      const [c, s] = [run.x[0], run.x[1]];
      return Array.from({ length: TOKENS }, (_, k) => {
        const [x, y] = [run.x[2 * k], run.x[2 * k + 1]];
        return Math.atan2(c * y - s * x, c * x + s * y);
      });
    };

    const restart = () => {
      run = csaDynamics.createSimulation(system, csaDynamics.uniformTokens(seed, TOKENS, 2));
      lines = [[0, angles()]];
      place = 0;
      rest = PAUSE;
      link.hash = `play:d=2&n=${TOKENS}&beta=${BETA}&seed=${seed}&clock=growing`;
    };

    const layout = () => {
      const width = Math.max(240, canvas.clientWidth);
      const stacked = width < 560;
      const height = stacked ? width * 0.82 + 210 : Math.min(360, width * 0.47);
      const ratio = window.devicePixelRatio || 1;
      canvas.style.height = `${height}px`;
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      [river.width, river.height] = [canvas.width, canvas.height];
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      ink.setTransform(ratio, 0, 0, ratio, 0, 0);
      const circle = stacked ? width * 0.82 : height;
      box = {
        width,
        height,
        x: circle / 2 + (stacked ? width * 0.09 : 0),
        y: circle / 2,
        radius: circle / 2 - 22,
        left: stacked ? 26 : circle + 24,
        right: width - 14,
        top: stacked ? circle + 14 : 20,
        bottom: height - 38,
      };
      for (let i = 1; i < lines.length; i++) addLines(lines[i - 1], lines[i]);
    };

    const across = (p) => box.left + p * (box.right - box.left);
    const down = (angle) => box.bottom - ((angle + Math.PI) / (2 * Math.PI)) * (box.bottom - box.top);
    const addLines = (from, to) => {
      for (let k = TOKENS - 1; k >= 0; k--) {
        const [a, b] = [from[1][k], to[1][k]];
        if (Math.abs(a - b) > Math.PI) continue; // it leaves above and comes back below
        ink.beginPath();
        ink.strokeStyle = shades[k];
        ink.lineWidth = k === 0 ? 2.6 : 1;
        ink.moveTo(across(from[0]), down(a));
        ink.lineTo(across(to[0]), down(b));
        ink.stroke();
      }
    };

    const draw = () => {
      const { width, height, x, y, radius, left, right, top, bottom } = box;
      context.fillStyle = "#fff";
      context.fillRect(0, 0, width, height);
      // the circle
      context.lineWidth = 1;
      context.strokeStyle = "#8A94A3";
      context.beginPath();
      context.arc(x, y, radius, 0, 2 * Math.PI);
      context.stroke();
      for (let k = TOKENS - 1; k > 0; k--) {
        context.beginPath();
        context.arc(x + radius * run.x[2 * k], y - radius * run.x[2 * k + 1], 5, 0, 2 * Math.PI);
        context.fillStyle = shades[k];
        context.strokeStyle = "#fff";
        context.fill();
        context.stroke();
      }
      drawStar(x + radius * run.x[0], y - radius * run.x[1], 11);
      // the lines
      context.strokeStyle = "#C9CFD7";
      context.strokeRect(left, top, right - left, bottom - top);
      context.drawImage(river, 0, 0, width, height);
      drawStar(left, down(0), 8);
      context.fillStyle = SOFT;
      context.font = "12px sans-serif";
      context.textAlign = "center";
      for (const c of TICKS) {
        const label = c === 0 ? "0" : c < 3 ? String(10 ** c) : power(c);
        context.fillRect(across(placeOf(c)), bottom, 1, 5);
        context.fillText(label, Math.min(across(placeOf(c)), right - 6), bottom + 18);
      }
      context.fillStyle = INK;
      context.fillText("time", (left + right) / 2, bottom + 34);
      context.save();
      context.translate(left - 8, (top + bottom) / 2);
      context.rotate(-Math.PI / 2);
      context.fillText("angle from the first token", 0, 0);
      context.restore();
    };

    const drawStar = (x, y, r) => {
      star(context, x, y, r);
      context.fillStyle = FIRST;
      context.strokeStyle = "#fff";
      context.lineWidth = 1;
      context.fill();
      context.stroke();
    };

    const loop = () => {
      if (pending === 0) pending = requestAnimationFrame(frame);
    };
    const frame = (now) => {
      pending = 0;
      if (!playing || !visible) return;
      const passed = before === null ? 0 : Math.min(0.1, (now - before) / 1000);
      before = now;
      if (place < 1) {
        const goal = Math.min(1, place + passed / SECONDS);
        run.advance(timeAt(goal), FRAME_BUDGET);
        place = Math.min(goal, placeOf(Math.log10(1 + run.t)));
        lines.push([place, angles()]);
        addLines(lines.at(-2), lines.at(-1));
      } else {
        rest -= passed;
        if (rest < 0) {
          seed += 1;
          restart();
          ink.clearRect(0, 0, box.width, box.height);
        }
      }
      draw();
      loop();
    };

    const play = (on) => {
      playing = on;
      before = null;
      button.textContent = on ? "Pause" : "Play";
      if (on) loop();
    };

    button.addEventListener("click", () => play(!playing));
    new ResizeObserver(() => {
      layout();
      draw();
    }).observe(root);
    new IntersectionObserver(([entry]) => {
      visible = entry.isIntersecting;
      before = null;
      if (visible && playing) loop();
    }).observe(canvas);
    restart();
    layout();
    draw();
    root.classList.add("csa-live-ready");
    play(!matchMedia("(prefers-reduced-motion: reduce)").matches);
  };

  const begin = () => document.querySelectorAll("figure.csa-live").forEach(start);
  if (document.readyState === "loading") addEventListener("DOMContentLoaded", begin);
  else begin();
})();
