/**
 * The playground page: controls, clock, drawing and links around dynamics.js.
 *
 * `settings` is what the controls show and a link carries; `run` is the simulation
 * that goes on.  Everything the page may be given, by hand or by a link, passes
 * through the checks of the next section first.
 */
(() => {
  "use strict";
  const D = globalThis.csaDynamics;
  const { FIRST, cividis, power, star } = globalThis.csaDrawing;
  const root = document.getElementById("csa-playground");
  if (!root || !D) return;
  const $ = (name) => root.querySelector(`[data-is="${name}"]`);

  // --- settings and their checks -------------------------------------------------------

  /** Numbers: least, largest, whole or not, and the name a reader knows. */
  const NUMBERS = {
    n: [1, 400, true, "number of tokens"],
    beta: [0, 100, false, "beta"],
    shear: [-10, 10, false, "shear"],
    seed: [0, 4294967295, true, "seed"],
    qkseed: [0, 4294967295, true, "seed of Q and K"],
    c: [0.5, 8, false, "c"],
    radius: [0.001, 1, false, "cluster radius"],
    steady: [0.01, 100, false, "speed"],
    growing: [0.01, 20, false, "speed"],
    azimuth: [-1e4, 1e4, false, "azimuth"],
    elevation: [-1.5, 1.5, false, "elevation"],
    t: [0, 1e300, false, "time"],
  };
  const EIGENVALUE = [-10, 10, false, "eigenvalue"];
  const ENTRY = [-100, 100, false, "matrix entry"];

  const DEFAULTS = {
    d: 3,
    n: 60,
    beta: 9,
    V: { mode: "real", numbers: [1, 1, 1] },
    shear: 0,
    QK: { mode: "identity" },
    qkseed: 1,
    causal: true,
    seed: 3,
    c: 4,
    centers: false,
    colours: "order",
    trails: true,
    radius: 0.05,
    clock: "growing",
    steady: 1,
    growing: 0.5,
    azimuth: 0.6,
    elevation: 0.35,
  };
  const copy = (value) => JSON.parse(JSON.stringify(value));

  const shorten = (text) => (String(text).length > 40 ? `${String(text).slice(0, 40)}…` : String(text));

  const number = (text, [least, largest, whole, name]) => {
    const clean = typeof text === "number" ? String(text) : String(text).trim();
    const value = Number(clean);
    if (clean === "" || !/^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(clean) || !Number.isFinite(value)) {
      throw new RangeError(`${name} must be a number, got “${shorten(text)}”`);
    }
    if (whole && !Number.isInteger(value)) throw new RangeError(`${name} must be a whole number, got ${shorten(text)}`);
    if (value < least || value > largest) {
      throw new RangeError(`${name} must lie between ${least} and ${largest}, got ${shorten(text)}`);
    }
    return value;
  };

  const choice = (text, allowed, name) => {
    if (!allowed.includes(text)) throw new RangeError(`${name} must be ${allowed.join(" or ")}, got “${shorten(text)}”`);
    return text;
  };

  const numbers = (text, count, rule, name) => {
    const parts = Array.isArray(text) ? text.flat() : String(text).trim().split(/[\s,;]+/);
    if (parts.length !== count) throw new RangeError(`${name} needs ${count} numbers, got ${parts.length}`);
    return parts.map((part) => number(part, [rule[0], rule[1], rule[2], `each number of ${name}`]));
  };

  const checkTokens = (x, d, n, name) => {
    if (x.length !== n * d) throw new RangeError(`${name} must hold ${n} tokens of ${d} numbers, got ${x.length} numbers`);
    for (let k = 0; k < n; k++) {
      let square = 0;
      for (let c = 0; c < d; c++) square += x[k * d + c] ** 2;
      if (!Number.isFinite(square)) throw new RangeError(`${name}: token ${k + 1} is not made of finite numbers`);
      if (Math.abs(square - 1) > 1e-9) {
        throw new RangeError(`${name}: token ${k + 1} must have length one, got ${Math.sqrt(square).toPrecision(6)}`);
      }
    }
    return x;
  };

  const V_MODES = ["real", "pair", "matrix"];
  const QK_MODES = ["identity", "flip", "random", "matrix"];

  const countOfV = (mode, d) => (mode === "matrix" ? d * d : d);

  const matrixOfV = ({ d, V, shear }) => {
    if (V.mode === "matrix") return Float64Array.from(V.numbers);
    const [a, b, c] = V.numbers;
    const top = V.mode === "real" ? [a, shear, 0, b] : [a, -b, b, a]; // 2 x 2, row by row
    return Float64Array.from(d === 2 ? top : [top[0], top[1], 0, top[2], top[3], 0, 0, 0, c]);
  };

  const matricesOfQK = ({ d, QK, qkseed }) => {
    const diagonal = (first) => Float64Array.from({ length: d * d }, (_, i) => (i === 0 ? first : i % (d + 1) ? 0 : 1));
    if (QK.mode === "matrix") return [QK.Q, QK.K].map((a) => Float64Array.from(a));
    if (QK.mode === "random") return [D.randomMatrix(qkseed, d, 1), D.randomMatrix(qkseed, d, 2)];
    return [diagonal(1), diagonal(QK.mode === "flip" ? -1 : 1)];
  };

  const systemOf = (s) => {
    const [Q, K] = matricesOfQK(s);
    return { d: s.d, Q, K, V: matrixOfV(s), beta: s.beta, causal: s.causal };
  };

  const deltaOf = ({ c, beta }) => Math.min(Math.PI, beta > 0 ? c / Math.sqrt(beta) : Infinity);

  // --- links ------------------------------------------------------------------------------

  const MARK = "play:";

  const encode = (x) => {
    const bytes = new Uint8Array(8 * x.length);
    const view = new DataView(bytes.buffer);
    x.forEach((value, i) => view.setFloat64(8 * i, value, true));
    let text = "";
    for (const byte of bytes) text += String.fromCharCode(byte);
    return btoa(text).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  };

  const decode = (text, name) => {
    let raw;
    try {
      if (!/^[\w-]+$/.test(text)) throw new Error("alphabet");
      raw = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
    } catch {
      throw new RangeError(`${name} is not readable`);
    }
    if (raw.length % 8) throw new RangeError(`${name} is cut off`);
    const view = new DataView(Uint8Array.from(raw, (c) => c.charCodeAt(0)).buffer);
    return Float64Array.from({ length: raw.length / 8 }, (_, i) => view.getFloat64(8 * i, true));
  };

  const textOfV = ({ mode, numbers: list }) => (mode === "real" ? list.join(",") : `${mode}:${list.join(",")}`);
  const textOfQK = (qk) => (qk.mode === "matrix" ? `matrix:${[...qk.Q, ...qk.K].join(",")}` : qk.mode);
  const modeAndRest = (text) => {
    const at = text.indexOf(":");
    return at < 0 ? ["", text] : [text.slice(0, at), text.slice(at + 1)];
  };
  const yesNo = (text, name) => choice(text, ["0", "1"], name) === "1";

  /** The present state as the part of a link after "#". */
  const toLink = () => {
    const s = settings;
    const parts = [
      ["d", s.d],
      ["n", s.n],
      ["beta", s.beta],
      ["V", textOfV(s.V)],
      ["shear", s.shear],
      ["QK", textOfQK(s.QK)],
      ["qkseed", s.qkseed],
      ["mask", s.causal ? "causal" : "full"],
      ["seed", s.seed],
      ["c", s.c],
      ["centers", s.centers ? 1 : 0],
      ["colours", s.colours],
      ["trails", s.trails ? 1 : 0],
      ["radius", s.radius],
      ["clock", s.clock],
      ["steady", s.steady],
      ["growing", s.growing],
      ["azimuth", s.azimuth],
      ["elevation", s.elevation],
    ].filter(([key, value]) => isNeeded(key, value));
    if (run.selected >= 0) parts.push(["token", run.selected + 1]);
    if (run.moved) parts.push(["start", encode(run.start)]);
    if (run.sim.t > 0) parts.push(["t", run.sim.t], ["x", encode(run.sim.x)]);
    return MARK + parts.map(([key, value]) => `${key}=${value}`).join("&");
  };

  /** Defaults stay out of a link, but for what everybody wants to see in it. */
  const isNeeded = (key, value) => {
    if (["d", "n", "beta", "V", "seed"].includes(key)) return true;
    if (key === "mask") return value !== "causal";
    if (key === "QK") return value !== "identity";
    if (key === "centers" || key === "trails") return Boolean(value) !== DEFAULTS[key];
    return value !== DEFAULTS[key];
  };

  /**
   * Read the part of a link after "#".
   * @returns {{settings: object, t: number, start: ?Float64Array, x: ?Float64Array, token: number}}
   */
  const fromLink = (text) => {
    if (!text.startsWith(MARK)) throw new RangeError(`“${shorten(text)}” is neither a place on this page nor a playground state`);
    const given = new Map();
    for (const part of text.slice(MARK.length).split("&")) {
      const at = part.indexOf("=");
      if (at < 1) throw new RangeError(`“${shorten(part)}” is not of the form name=value`);
      const key = part.slice(0, at);
      if (given.has(key)) throw new RangeError(`${shorten(key)} is given twice`);
      given.set(key, part.slice(at + 1));
    }
    const s = copy(DEFAULTS);
    const take = (key, read) => {
      if (!given.has(key)) return;
      s[key] = read(given.get(key));
      given.delete(key);
    };
    take("d", (v) => Number(choice(v, ["2", "3"], "d")));
    s.V.numbers = Array(s.d).fill(1);
    for (const key of Object.keys(NUMBERS)) if (key !== "t") take(key, (v) => number(v, NUMBERS[key]));
    take("V", (v) => {
      const [mode, rest] = modeAndRest(v);
      choice(mode || "real", V_MODES, "the kind of V");
      return { mode: mode || "real", numbers: numbers(rest, countOfV(mode, s.d), mode === "matrix" ? ENTRY : EIGENVALUE, "V") };
    });
    take("QK", (v) => {
      const [mode, rest] = modeAndRest(v);
      if (mode !== "matrix") return { mode: choice(v, QK_MODES.slice(0, 3), "QK") };
      const all = numbers(rest, 2 * s.d * s.d, ENTRY, "QK");
      return { mode, Q: all.slice(0, s.d * s.d), K: all.slice(s.d * s.d) };
    });
    if (given.has("mask")) s.causal = choice(given.get("mask"), ["causal", "full"], "mask") === "causal";
    given.delete("mask");
    take("centers", (v) => yesNo(v, "centers"));
    take("trails", (v) => yesNo(v, "trails"));
    take("colours", (v) => choice(v, ["order", "plain"], "colours"));
    take("clock", (v) => choice(v, ["steady", "growing"], "clock"));
    let t = 0;
    let start = null;
    let x = null;
    let token = 0;
    if (given.has("start")) {
      const v = given.get("start");
      if (v.startsWith("angles:")) {
        if (s.d !== 2) throw new RangeError("start: angles need d = 2");
        const angles = numbers(v.slice(7), s.n, [-360, 360, false], "start");
        start = Float64Array.from(angles.flatMap((a) => [Math.cos((a * Math.PI) / 180), Math.sin((a * Math.PI) / 180)]));
      } else start = checkTokens(decode(v, "start"), s.d, s.n, "start");
    }
    if (given.has("t")) t = number(given.get("t"), NUMBERS.t);
    if (given.has("x")) x = checkTokens(decode(given.get("x"), "x"), s.d, s.n, "x");
    if (t > 0 && !x) throw new RangeError("t is given without the positions x at that time");
    if (x && !(t > 0)) throw new RangeError("positions x are given without their time t");
    if (given.has("token")) token = number(given.get("token"), [1, s.n, true, "token"]);
    for (const key of ["start", "t", "x", "token"]) given.delete(key);
    for (const key of given.keys()) throw new RangeError(`there is no setting “${shorten(key)}”`);
    return { settings: s, t, start, x, token };
  };

  // --- the run -----------------------------------------------------------------------------

  let settings = copy(DEFAULTS);
  const run = {
    start: null, // tokens at t = 0
    moved: false, // whether they differ from what the seed gives
    sim: null,
    centers: { renyi: [], strong: [] },
    selected: -1,
    hovered: -1,
    clusters: { labels: [], count: 0 },
    since: null, // time since when there is one cluster
    chart: [], // [t, number of clusters], only changes
    history: [], // recent positions, for the trails
    held: 0, // share of recent frames in which the solver could not keep up
    born: [], // when a token appeared, in ms of the page's clock
  };
  let playing = false;
  let invited = true; // the large button is there until it is used, or the picture is

  const newSimulation = (x, t) => {
    run.sim = D.createSimulation(systemOf(settings), x, { t });
  };

  const recenter = () => {
    run.centers = D.centers(run.start, settings.d, deltaOf(settings));
  };

  const observe = () => {
    const { sim } = run;
    run.clusters = D.clusters(sim.x, sim.d, settings.radius);
    if (run.clusters.count > 1) run.since = null;
    else if (run.since === null) run.since = sim.t;
    const last = run.chart[run.chart.length - 1];
    if (!last || last[1] !== run.clusters.count || last[2] !== sim.n) run.chart.push([sim.t, run.clusters.count, sim.n]);
    if (run.chart.length > 4000) run.chart = run.chart.filter((_, i) => i % 2 === 0 || i > 3000); // thin out the past
  };

  /** Begin at `start` and t = 0. */
  const begin = (start, moved) => {
    run.start = start;
    run.moved = moved;
    newSimulation(start, 0);
    run.since = null;
    run.chart = [];
    run.history = [];
    run.held = 0;
    if (run.selected >= settings.n) run.selected = -1;
    run.hovered = -1;
    recenter();
    observe();
  };

  const seeded = () => D.uniformTokens(settings.seed, settings.n, settings.d);

  /** Tokens come in one after another, within about a second. */
  const reveal = () => {
    const now = performance.now();
    const calm = reduced.matches;
    run.born = Array.from({ length: settings.n }, (_, k) => (calm ? -1e9 : now + (900 * k) / settings.n));
    wake();
  };
  const settle = () => {
    run.born = Array(settings.n).fill(-1e9);
  };

  const freshStart = () => {
    begin(seeded(), false);
    reveal();
    refresh();
  };

  /** More tokens join, or the last ones leave; those that stay are not touched. */
  const resize = (n) => {
    const { d } = settings;
    const before = settings.n;
    settings.n = n;
    if (n === before) return;
    const grow = (x) => {
      if (n <= before) return x.slice(0, n * d);
      const longer = D.uniformTokens(settings.seed, n, d);
      longer.set(x);
      return longer;
    };
    const x = grow(run.sim.x);
    run.start = grow(run.start);
    if (run.sim.t === 0) begin(run.start, run.moved);
    else {
      newSimulation(x, run.sim.t);
      if (run.selected >= n) run.selected = -1;
      run.hovered = -1;
      recenter();
      observe();
    }
    const now = performance.now();
    while (run.born.length < n) run.born.push(reduced.matches ? -1e9 : now);
    run.born.length = n;
    wake();
  };

  /** Go on from where the tokens are under changed rules. */
  const rerule = () => {
    newSimulation(run.sim.x, run.sim.t);
    recenter();
    observe();
  };

  /** Put token k at a place; that is a new start from the present picture. */
  const put = (k, place) => {
    const { d } = settings;
    const x = Float64Array.from(run.sim.x);
    const length = Math.sqrt(place.reduce((sum, v) => sum + v * v, 0));
    if (!(length > 1e-12)) return;
    for (let c = 0; c < d; c++) x[k * d + c] = place[c] / length;
    begin(x, true);
    refresh();
  };

  const apply = (loaded) => {
    pause();
    settings = loaded.settings;
    run.selected = loaded.token - 1;
    begin(loaded.start ?? seeded(), Boolean(loaded.start));
    if (loaded.x) {
      newSimulation(loaded.x, loaded.t);
      run.since = null;
      run.chart = [];
      observe();
    }
    settle();
    showControls();
    refresh();
    describe();
  };

  // --- clock ---------------------------------------------------------------------------------

  const reduced = matchMedia("(prefers-reduced-motion: reduce)");
  const BUDGET = 9; // milliseconds a frame for the solver
  const timing = { solve: [], draw: [], frame: [] };
  const keep = (list, value) => {
    list.push(value);
    if (list.length > 600) list.shift();
  };

  /** Where the clock should stand after `seconds` more. */
  const later = (seconds) => {
    const { t } = run.sim;
    if (settings.clock === "steady") return t + settings.steady * seconds;
    return (1 + t) * 10 ** (settings.growing * seconds) - 1;
  };

  let scheduled = 0;
  let before = 0;
  let dirty = true;

  const wake = () => {
    dirty = true;
    if (!scheduled) scheduled = requestAnimationFrame(frame);
  };

  const appearing = (now) => run.born.length > 0 && now < run.born[run.born.length - 1] + 250;

  const frame = (now) => {
    scheduled = 0;
    if (!root.isConnected) return;
    const t0 = performance.now();
    const entering = appearing(t0);
    if (playing) {
      if (before > 0) keep(timing.frame, now - before);
      // the clock waits for the tokens of a new start, but not for newcomers
      if (before > 0 && !(entering && run.sim.t === 0)) {
        let reached = true;
        try {
          const target = Math.min(later(Math.min(now - before, 50) / 1000), NUMBERS.t[1]);
          reached = run.sim.advance(target, BUDGET);
        } catch (error) {
          pause();
          say(error.message, true);
        }
        run.held += ((reached ? 0 : 1) - run.held) / 20;
        remember();
        observe();
      }
      before = now;
      keep(timing.solve, performance.now() - t0);
    }
    const t1 = performance.now();
    if (playing || entering || dirty) draw(t1);
    dirty = false;
    if (playing) keep(timing.draw, performance.now() - t1);
    if (playing || entering) wake();
  };

  const remember = () => {
    if (!settings.trails) return;
    run.tick = (run.tick ?? 0) + 1;
    const every = settings.d === 2 ? 3 : 2;
    if (run.tick % every) return;
    const longest = settings.d === 2 ? 48 : 16;
    run.history.unshift(Float64Array.from(run.sim.x));
    const fits = Math.max(6, Math.min(longest, Math.floor(6000 / settings.n)));
    if (run.history.length > fits) run.history.length = fits;
  };

  const play = () => {
    if (playing) return;
    playing = true;
    before = 0;
    showPlaying();
    wake();
  };

  const pause = () => {
    if (!playing) return;
    playing = false;
    showPlaying();
    refresh();
    describe();
  };

  const stepOnce = () => {
    pause();
    settle();
    const target = Math.min(later(settings.clock === "steady" ? 0.1 : 0.1 / settings.growing), NUMBERS.t[1]);
    run.sim.advance(target, 300);
    remember();
    observe();
    refresh();
    describe();
  };

  const restart = () => {
    begin(run.start, run.moved);
    reveal();
    refresh();
    describe();
  };

  // --- drawing ---------------------------------------------------------------------------------

  const stage = $("stage");
  const chart = $("chart");
  const pen = stage.getContext("2d");
  const chartPen = chart.getContext("2d");
  const ground = document.createElement("canvas");
  const veil = document.createElement("canvas");
  let look = {}; // colours of the theme
  let size = 0; // of the stage, in CSS pixels
  let chartSize = [0, 0];
  let groundKey = "";

  let palette = [];
  const colourOf = (k) => {
    if (settings.colours === "plain") return look.token;
    const n = settings.n;
    if (palette.length !== n) palette = Array.from({ length: n }, (_, i) => cividis(n > 2 ? (i - 1) / (n - 2) : 0));
    return palette[k];
  };

  const readTheme = () => {
    const style = getComputedStyle(root);
    const get = (name) => style.getPropertyValue(name).trim();
    const dark = document.documentElement.dataset.theme === "dark";
    look = {
      dark,
      ink: get("--csa-ink"),
      soft: get("--csa-soft"),
      line: get("--csa-line"),
      card: get("--csa-card"),
      paper: get("--csa-pg-paper"),
      globe: get("--csa-pg-globe"),
      rim: get("--csa-pg-rim"),
      token: dark ? "#56A8E0" : "#0072B2",
      first: dark ? "#FF8A3D" : FIRST,
      font: style.fontFamily,
    };
    groundKey = "";
    wake();
  };

  const fit = (canvas, width, height) => {
    const ratio = Math.min(3, window.devicePixelRatio || 1);
    const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (canvas.width !== w || canvas.height !== h) {
      canvas.width = w;
      canvas.height = h;
    }
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    return context;
  };

  const measure = () => {
    size = Math.max(120, stage.clientWidth);
    chartSize = [Math.max(120, chart.clientWidth), Math.max(60, chart.clientHeight)];
    fit(stage, size, size);
    fit(chart, ...chartSize);
    groundKey = "";
    wake();
  };

  /** Radius of the circle or sphere on the stage. */
  const globeRadius = () => size * (settings.d === 2 ? 0.385 : 0.43);

  /** Right, up and towards the viewer, as rows. */
  const camera = () => {
    if (settings.d === 2) return [1, 0, 0, 0, 1, 0, 0, 0, 1];
    const [ca, sa] = [Math.cos(settings.azimuth), Math.sin(settings.azimuth)];
    const [ce, se] = [Math.cos(settings.elevation), Math.sin(settings.elevation)];
    return [-sa, ca, 0, -se * ca, -se * sa, ce, ce * ca, ce * sa, se];
  };

  const dot = (row, p) => row[0] * p[0] + row[1] * p[1] + row[2] * p[2];

  const paintGround = () => {
    const { d } = settings;
    const m = camera();
    const key = [d, size, settings.azimuth, settings.elevation, look.dark, textOfV(settings.V), window.devicePixelRatio].join();
    if (key === groundKey) return;
    groundKey = key;
    const back = fit(ground, size, size);
    const front = fit(veil, size, size);
    back.clearRect(0, 0, size, size);
    front.clearRect(0, 0, size, size);
    const R = globeRadius();
    const o = size / 2;
    if (d === 3) {
      const shade = back.createRadialGradient(o - R * 0.35, o - R * 0.4, R * 0.1, o, o, R);
      shade.addColorStop(0, look.paper);
      shade.addColorStop(1, look.globe);
      back.fillStyle = shade;
      back.beginPath();
      back.arc(o, o, R, 0, 2 * Math.PI);
      back.fill();
      const line = (at, bold) => {
        for (let i = 0; i < 96; i++) {
          const [p, q] = [at((i * Math.PI) / 48), at(((i + 1) * Math.PI) / 48)];
          const near = dot(m.slice(6), p) + dot(m.slice(6), q) > 0;
          const context = near ? front : back;
          context.globalAlpha = (near ? 0.9 : 0.45) * (bold ? 1 : 0.6);
          context.strokeStyle = look.rim;
          context.lineWidth = bold ? 1.1 : 0.7;
          context.beginPath();
          context.moveTo(o + R * dot(m, p), o - R * dot(m.slice(3), p));
          context.lineTo(o + R * dot(m, q), o - R * dot(m.slice(3), q));
          context.stroke();
        }
      };
      for (let i = 0; i < 6; i++) {
        const [c, s] = [Math.cos((i * Math.PI) / 6), Math.sin((i * Math.PI) / 6)];
        line((a) => [c * Math.cos(a), s * Math.cos(a), Math.sin(a)], i % 3 === 0);
      }
      for (let i = -2; i <= 2; i++) {
        const [c, s] = [Math.cos((i * Math.PI) / 6), Math.sin((i * Math.PI) / 6)];
        line((a) => [c * Math.cos(a), c * Math.sin(a), s], i === 0);
      }
    }
    back.globalAlpha = front.globalAlpha = 1;
    back.strokeStyle = look.rim;
    back.lineWidth = 1.5;
    back.beginPath();
    back.arc(o, o, R, 0, 2 * Math.PI);
    back.stroke();
    // where the coordinate axes leave the circle or the sphere
    back.font = front.font = `600 13px ${look.font}`;
    for (let i = 0; i < d; i++) {
      for (const sign of [1, -1]) {
        const p = [0, 0, 0];
        p[i] = sign;
        const context = d === 2 || dot(m.slice(6), p) >= 0 ? front : back;
        const [sx, sy] = [dot(m, p), dot(m.slice(3), p)];
        context.globalAlpha = context === back && d === 3 ? 0.5 : 1;
        context.strokeStyle = look.soft;
        context.fillStyle = look.soft;
        context.lineWidth = 1.2;
        context.beginPath();
        if (d === 2) {
          context.moveTo(o + R * 0.97 * sx, o - R * 0.97 * sy);
          context.lineTo(o + R * 1.05 * sx, o - R * 1.05 * sy);
        } else {
          const [x, y] = [o + R * sx, o - R * sy];
          context.moveTo(x - 4, y);
          context.lineTo(x + 4, y);
          context.moveTo(x, y - 4);
          context.lineTo(x, y + 4);
        }
        context.stroke();
        context.textAlign = "center";
        context.textBaseline = "middle";
        const name = `${sign < 0 ? "−" : ""}e${"₁₂₃"[i]}`;
        const out = d === 2 ? 1.15 : 1 + 15 / R;
        if (d === 2) context.fillText(name, o + R * out * sx, o - R * out * sy);
        else context.fillText(name, o + R * sx + 13, o - R * sy - 10);
      }
    }
    back.globalAlpha = front.globalAlpha = 1;
  };

  let screen = new Float64Array(0); // x, y on the stage and depth of every token

  const projectTokens = () => {
    const { d, n } = settings;
    const { x } = run.sim;
    const m = camera();
    const R = globeRadius();
    const o = size / 2;
    if (screen.length !== 3 * n) screen = new Float64Array(3 * n);
    for (let k = 0; k < n; k++) {
      const a = x[k * d];
      const b = x[k * d + 1];
      const c = d === 3 ? x[k * d + 2] : 0;
      screen[3 * k] = o + R * (m[0] * a + m[1] * b + m[2] * c);
      screen[3 * k + 1] = o - R * (m[3] * a + m[4] * b + m[5] * c);
      screen[3 * k + 2] = d === 2 ? 0 : m[6] * a + m[7] * b + m[8] * c;
    }
  };

  const drawTrails = () => {
    const list = run.history;
    if (!settings.trails || list.length < 1) return;
    const { d, n } = settings;
    const m = camera();
    const R = globeRadius();
    const o = size / 2;
    const all = [run.sim.x, ...list];
    const depth = d === 2 ? Math.max(16, Math.floor(6000 / n) < 48 ? Math.floor(6000 / n) : 48) : 16;
    // fraction of a sample since the last one, so that rings drift evenly
    const every = d === 2 ? 3 : 2;
    const since = ((run.tick ?? 0) % every) / every;
    pen.lineWidth = 1;
    pen.lineCap = "round";
    for (let i = 0; i + 1 < all.length; i++) {
      const [p, q] = [all[i], all[i + 1]];
      const count = Math.min(p.length, q.length) / d;
      const [ageP, ageQ] = [i === 0 ? 0 : i - 1 + since, i + since].map((a) => Math.min(1, a / depth));
      const [rp, rq] = d === 2 ? [R * (1 - 0.8 * ageP), R * (1 - 0.8 * ageQ)] : [R, R];
      pen.globalAlpha = (d === 2 ? 0.5 : 0.6) * (1 - ageQ) ** 1.2;
      for (const first of [true, false]) {
        pen.strokeStyle = first ? look.first : look.token;
        pen.lineWidth = first ? 2 : 1;
        pen.beginPath();
        for (let k = first ? 0 : 1; k < (first ? 1 : count); k++) {
          const a = k * d;
          if (d === 2) {
            pen.moveTo(o + rp * p[a], o - rp * p[a + 1]);
            pen.lineTo(o + rq * q[a], o - rq * q[a + 1]);
          } else {
            if (m[6] * p[a] + m[7] * p[a + 1] + m[8] * p[a + 2] < -0.1) continue;
            pen.moveTo(
              o + rp * (m[0] * p[a] + m[1] * p[a + 1] + m[2] * p[a + 2]),
              o - rp * (m[3] * p[a] + m[4] * p[a + 1] + m[5] * p[a + 2]),
            );
            pen.lineTo(
              o + rq * (m[0] * q[a] + m[1] * q[a + 1] + m[2] * q[a + 2]),
              o - rq * (m[3] * q[a] + m[4] * q[a + 1] + m[5] * q[a + 2]),
            );
          }
        }
        pen.stroke();
      }
    }
    pen.globalAlpha = 1;
  };

  let order = [];

  const draw = (now) => {
    const { d, n } = settings;
    if (!size) return;
    paintGround();
    projectTokens();
    pen.clearRect(0, 0, size, size);
    pen.drawImage(ground, 0, 0, size, size);
    const marks = new Uint8Array(n); // 1: Renyi center, 2: strong as well
    if (settings.centers) {
      for (const k of run.centers.renyi) marks[k] = 1;
      for (const k of run.centers.strong) marks[k] = 2;
    }
    const radius = Math.max(2.6, Math.min(6, size / 75) * (n > 120 ? 0.72 : 1));
    if (order.length !== n) order = Array.from({ length: n }, (_, k) => k);
    // from back to front; in one place, earlier tokens on top
    const layer = (k) => Math.round(100 * screen[3 * k + 2]) + (screen[3 * k + 2] < 0 ? -1 : 0);
    if (d === 3) order.sort((a, b) => layer(a) - layer(b) || b - a);
    else order.sort((a, b) => b - a);
    let veiled = false;
    drawTrails();
    pen.lineWidth = 1;
    for (const k of order) {
      const depth = screen[3 * k + 2];
      if (!veiled && depth >= 0) {
        pen.globalAlpha = 1;
        pen.drawImage(veil, 0, 0, size, size);
        veiled = true;
      }
      const age = now - run.born[k];
      if (age < 0) continue;
      const grown = age > 250 ? 1 : 0.3 + 0.7 * (age / 250);
      const flash = age > 250 ? 0 : 1 - age / 250;
      const x = screen[3 * k];
      const y = screen[3 * k + 1];
      const r = radius * grown * (d === 3 ? 0.82 + 0.18 * depth : 1) * (1 + flash);
      pen.globalAlpha = depth < 0 ? 0.34 + 0.2 * (1 + depth) : 1;
      if (k === 0) {
        star(pen, x, y, r * 2.1);
        pen.fillStyle = look.first;
      } else {
        pen.beginPath();
        pen.arc(x, y, r, 0, 2 * Math.PI);
        pen.fillStyle = colourOf(k);
      }
      pen.fill();
      pen.strokeStyle = look.dark ? "rgba(255, 255, 255, 0.75)" : "rgba(255, 255, 255, 0.9)";
      pen.lineWidth = 1;
      if (settings.colours === "order" && !look.dark) pen.strokeStyle = "rgba(34, 40, 50, 0.55)";
      pen.stroke();
      if (marks[k]) {
        pen.strokeStyle = marks[k] === 2 ? look.first : look.ink;
        pen.lineWidth = 1.8;
        pen.beginPath();
        pen.arc(x, y, r + 4.5, 0, 2 * Math.PI);
        pen.stroke();
        if (marks[k] === 2) {
          pen.beginPath();
          pen.arc(x, y, r + 8.5, 0, 2 * Math.PI);
          pen.stroke();
        }
      }
      if (k === run.selected || k === run.hovered) {
        pen.globalAlpha = 1;
        pen.strokeStyle = look.ink;
        pen.lineWidth = k === run.selected ? 2 : 1.2;
        pen.setLineDash([4, 3]);
        pen.beginPath();
        pen.arc(x, y, r + 12, 0, 2 * Math.PI);
        pen.stroke();
        pen.setLineDash([]);
      }
    }
    pen.globalAlpha = 1;
    if (!veiled) pen.drawImage(veil, 0, 0, size, size);
    labelClusters();
    drawChart();
    showReadouts();
  };

  /** How many tokens each cluster has, as long as there are few clusters. */
  const labelClusters = () => {
    const { labels, count } = run.clusters;
    const { n, d } = settings;
    if (count > 14 || n < 3) return;
    const total = new Array(count).fill(0);
    const leader = new Array(count).fill(-1);
    for (let k = 0; k < n; k++) {
      if (total[labels[k]]++ === 0) leader[labels[k]] = k;
    }
    pen.font = `600 12px ${look.font}`;
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    for (let i = 0; i < count; i++) {
      const k = leader[i];
      if (total[i] < 2 || (d === 3 && screen[3 * k + 2] < -0.05)) continue;
      const [dx, dy] = [screen[3 * k] - size / 2, screen[3 * k + 1] - size / 2];
      const far = Math.hypot(dx, dy) || 1;
      const away = d === 2 ? -26 : 24;
      const x = screen[3 * k] + (d === 2 ? (away * dx) / far : 0);
      const y = screen[3 * k + 1] + (d === 2 ? (away * dy) / far : away);
      const text = String(total[i]);
      const w = 10 + 7 * text.length;
      pen.globalAlpha = 0.9;
      pen.fillStyle = look.paper;
      pen.beginPath();
      pen.roundRect(x - w / 2, y - 9, w, 18, 9);
      pen.fill();
      pen.globalAlpha = 1;
      pen.fillStyle = look.ink;
      pen.fillText(text, x, y + 0.5);
    }
  };

  const timeText = (t) => {
    if (t < 1000) return t.toFixed(t < 100 ? 2 : 1);
    if (t < 1e5) return Math.round(t).toLocaleString("en-GB").replace(/,/g, " ");
    const e = Math.floor(Math.log10(t));
    return `${(t / 10 ** e).toFixed(2)} × ${power(e)}`;
  };

  const drawChart = () => {
    const [w, h] = chartSize;
    const c = chartPen;
    const [left, right, top, bottom] = [44, 12, 12, 34];
    const { n } = settings;
    const most = Math.max(10, ...run.chart.map((p) => p[2]), n);
    const end = Math.max(2, Math.log10(1 + run.sim.t) * 1.04);
    const px = (t) => left + ((w - left - right) * Math.log10(1 + t)) / end;
    const py = (m) => top + (h - top - bottom) * (1 - Math.log10(m) / Math.log10(most));
    c.clearRect(0, 0, w, h);
    c.font = `12px ${look.font}`;
    c.lineWidth = 1;
    c.strokeStyle = look.line;
    c.fillStyle = look.soft;
    c.textBaseline = "middle";
    c.textAlign = "right";
    for (const m of [1, 3, 10, 30, 100, 300]) {
      if (m > most) break;
      c.beginPath();
      c.moveTo(left, py(m));
      c.lineTo(w - right, py(m));
      c.stroke();
      c.fillText(m, left - 6, py(m));
    }
    c.textAlign = "center";
    c.textBaseline = "top";
    const apart = [1, 2, 5, 10, 20, 50, 100, 200].find((a) => ((w - left - right) * a) / end > 44) ?? 500;
    for (let e = 0; e <= end; e += apart) {
      const t = e === 0 ? 0 : 10 ** e;
      if (px(t) > w - right + 1) break;
      c.beginPath();
      c.moveTo(px(t), top);
      c.lineTo(px(t), h - bottom + 4);
      c.stroke();
      c.fillText(e === 0 ? "0" : e < 3 ? String(t) : power(e), px(t), h - bottom + 7);
    }
    c.fillText("time t", left + (w - left - right) / 2, h - 13);
    c.save();
    c.translate(10, top + (h - top - bottom) / 2);
    c.rotate(-Math.PI / 2);
    c.textBaseline = "middle";
    c.fillText("clusters", 0, 0);
    c.restore();
    // line: the number stays until the next change
    c.strokeStyle = look.token;
    c.lineWidth = 2;
    c.lineJoin = "round";
    c.beginPath();
    let level = null;
    for (const [t, m] of run.chart) {
      if (level !== null) c.lineTo(px(t), py(level));
      c.lineTo(px(t), py(m));
      level = m;
    }
    c.lineTo(px(run.sim.t), py(level));
    c.stroke();
    c.fillStyle = look.token;
    c.beginPath();
    c.arc(px(run.sim.t), py(level), 3.5, 0, 2 * Math.PI);
    c.fill();
  };

  // --- readouts ------------------------------------------------------------------------------------

  const readouts = Object.fromEntries(
    ["time", "count", "noun", "diameter", "collapsed", "centerCount", "consumed", "token", "delta", "pace"].map((key) => [key, $(key)]),
  );
  const setText = (element, text) => {
    if (element.textContent !== text) element.textContent = text;
  };

  const share = (list) => {
    const { x, n, d } = run.sim;
    const reach = (2 * Math.sin(0.05)) ** 2; // within 0.1 radians
    let near = 0;
    for (let k = 0; k < n; k++) {
      for (const j of list) {
        let square = 0;
        for (let c = 0; c < d; c++) square += (x[k * d + c] - x[j * d + c]) ** 2;
        if (square <= reach) {
          near++;
          break;
        }
      }
    }
    return `${Math.round((100 * near) / n)} %`;
  };

  const isMultiple = (V, d) => V.every((v, i) => (i % (d + 1) ? v === 0 : v === V[0]));

  const tokenText = (k) => {
    const { x, d } = run.sim;
    if (d === 2) {
      const degrees = (Math.atan2(x[2 * k + 1], x[2 * k]) * 180) / Math.PI;
      return `token ${k + 1} at ${degrees.toFixed(2).replace("-", "−")}°`;
    }
    const list = [0, 1, 2].map((c) => x[3 * k + c].toFixed(3).replace("-", "−"));
    return `token ${k + 1} at (${list.join(", ")})`;
  };

  let ticks = 0;
  const showReadouts = () => {
    const { sim, clusters } = run;
    setText(readouts.time, timeText(sim.t));
    setText(readouts.count, String(clusters.count));
    setText(readouts.noun, clusters.count === 1 ? "cluster" : "clusters");
    if (!playing || ticks++ % 4 === 0) {
      setText(readouts.diameter, `${D.diameter(sim.x, sim.d).toPrecision(3)}`);
      setText(readouts.collapsed, run.since === null ? "not yet" : run.since > 0 ? `since t = ${timeText(run.since)}` : "from the start");
      setText(readouts.centerCount, `${run.centers.renyi.length}, strong ${run.centers.strong.length}`);
      setText(readouts.consumed, `${share(run.centers.renyi)}, strong ${share(run.centers.strong)}`);
    }
    const k = run.hovered >= 0 ? run.hovered : run.selected;
    const known = k >= 0 && k < sim.n;
    setText(readouts.token, known ? tokenText(k) : "point at a token");
    readouts.token.classList.toggle("csa-pg-hint", !known);
    let pace = "";
    if (sim.t > 1e14 && !isMultiple(matrixOfV(settings), settings.d)) {
      pace = "So late, rounding moves tokens more than attention does, unless V is a multiple of I.";
    } else if (playing && run.held > 0.6) pace = "The clock waits for the solver.";
    setText(readouts.pace, pace);
  };

  const describe = () => {
    const { sim, clusters } = run;
    const where = settings.d === 2 ? "circle" : "sphere";
    const how = settings.d === 2 ? "" : " Arrow keys turn the sphere.";
    stage.setAttribute(
      "aria-label",
      `${sim.n} ${sim.n === 1 ? "token" : "tokens"} on the ${where} at time ${timeText(sim.t)}, in ${clusters.count} ${clusters.count === 1 ? "cluster" : "clusters"}. ` +
        `Comma and full stop select a token, arrow keys move it, space plays.${how}`,
    );
  };

  const message = $("message");
  let messageTimer = 0;
  const say = (text, bad) => {
    clearTimeout(messageTimer);
    message.textContent = text;
    message.classList.toggle("csa-pg-bad", Boolean(bad));
    message.hidden = !text;
    if (text && !bad) messageTimer = setTimeout(() => say(""), 6000);
  };

  const refresh = () => wake();

  // --- controls --------------------------------------------------------------------------------------

  const showPlaying = () => {
    $("play-label").textContent = playing ? "Pause" : "Play";
    $("play-sign").textContent = playing ? "❚❚" : "▶";
    if (playing) invited = false;
    $("big").hidden = !invited || run.sim.t > 0;
  };

  // beta grows with the square of the slider, the speeds grow exponentially
  const SCALES = {
    beta: [(s) => 100 * s * s, (v) => Math.sqrt(v / 100)],
    steady: [(s) => 0.1 * 200 ** s, (v) => Math.log(v / 0.1) / Math.log(200)],
    growing: [(s) => 0.05 * 100 ** s, (v) => Math.log(v / 0.05) / Math.log(100)],
    n: [(s) => 1 + 399 * s * s, (v) => Math.sqrt((v - 1) / 399)],
  };
  const round = (v, digits) => Number(v.toPrecision(digits));

  /** A slider and a number field that show the same setting. */
  const pair = (name, get, set, rule) => {
    const slider = $(`${name}-slider`);
    const box = $(name);
    const [out, back] = SCALES[name] ?? [(s) => s, (v) => v];
    const scaled = name in SCALES;
    const show = () => {
      const value = get();
      if (value === undefined) return;
      if (document.activeElement !== box) box.value = String(value);
      box.removeAttribute("aria-invalid");
      if (slider && document.activeElement !== slider) slider.value = String(scaled ? back(value) : value);
      slider?.setAttribute("aria-valuetext", String(value));
    };
    const enter = (text, element) => {
      try {
        const value = number(text, rule());
        box.removeAttribute("aria-invalid");
        say("");
        set(value);
        if (element === slider) box.value = String(value);
        else if (slider) slider.value = String(scaled ? back(value) : value);
        slider?.setAttribute("aria-valuetext", String(value));
        refresh();
      } catch (error) {
        box.setAttribute("aria-invalid", "true");
        say(error.message, true);
      }
    };
    slider?.addEventListener("input", () => {
      const value = out(Number(slider.value));
      enter(name === "n" ? Math.round(value) : scaled ? round(value, 3) : value, slider);
    });
    slider?.addEventListener("change", describe);
    box.addEventListener("change", () => enter(box.value, box));
    box.addEventListener("blur", () => {
      if (box.getAttribute("aria-invalid") !== "true") return;
      say("");
      show();
      box.value = String(get());
      box.removeAttribute("aria-invalid");
    });
    return show;
  };

  const simple = (name, after) =>
    pair(
      name,
      () => settings[name],
      (value) => {
        settings[name] = value;
        after?.(value);
      },
      () => NUMBERS[name],
    );

  const eigen = (i) =>
    pair(
      `v${i + 1}`,
      () => (settings.V.mode === "matrix" ? undefined : settings.V.numbers[i]),
      (value) => {
        settings.V.numbers[i] = value;
        rerule();
      },
      () => EIGENVALUE,
    );

  const shows = [
    simple("beta", () => {
      rerule();
      showDelta();
    }),
    pair("n", () => settings.n, resize, () => NUMBERS.n),
    eigen(0),
    eigen(1),
    eigen(2),
    simple("shear", rerule),
    simple("seed", freshStart),
    simple("qkseed", rerule),
    simple("c", () => {
      recenter();
      showDelta();
    }),
    simple("radius", observe),
    simple("steady"),
    simple("growing"),
    pair(
      "select",
      () => (run.selected >= 0 ? run.selected + 1 : ""),
      (value) => {
        run.selected = value - 1;
      },
      () => [1, settings.n, true, "token"],
    ),
  ];

  const showDelta = () => {
    const delta = deltaOf(settings);
    setText(readouts.delta, `δ = ${delta >= Math.PI ? "π" : delta.toFixed(3)}`);
  };

  const segmented = (name, get, set) => {
    const inputs = [...root.querySelectorAll(`input[name="csa-pg-${name}"]`)];
    for (const input of inputs) {
      input.addEventListener("change", () => {
        set(input.value);
        showControls();
        refresh();
        describe();
      });
    }
    return () => {
      for (const input of inputs) input.checked = input.value === String(get());
    };
  };

  /** A checkbox or a list; `property` is where the page element keeps its value. */
  const chooser = (property) => (name, get, set) => {
    const input = $(name);
    input.addEventListener("change", () => {
      set(input[property]);
      showControls();
      refresh();
    });
    return () => {
      input[property] = get();
    };
  };
  const checkbox = chooser("checked");
  const select = chooser("value");

  /** A matrix as text: its numbers row by row. */
  const matrixField = (name, get, set) => {
    const input = $(name);
    const rows = (list) => {
      const { d } = settings;
      return Array.from({ length: d }, (_, i) => list.slice(i * d, (i + 1) * d).join(", ")).join("; ");
    };
    input.addEventListener("change", () => {
      try {
        set(numbers(input.value, settings.d ** 2, ENTRY, input.dataset.name));
        input.removeAttribute("aria-invalid");
        say("");
        refresh();
      } catch (error) {
        input.setAttribute("aria-invalid", "true");
        say(error.message, true);
      }
    });
    return () => {
      const list = get();
      if (list) input.value = rows(Array.from(list));
      input.removeAttribute("aria-invalid");
    };
  };

  shows.push(
    segmented("d", () => settings.d, (value) => {
      const d = Number(value);
      const old = settings.V;
      settings.d = d;
      if (old.mode === "matrix") settings.V = { mode: "real", numbers: Array(d).fill(1) };
      else if (d === 2) old.numbers.length = 2;
      else old.numbers.push(old.mode === "real" ? old.numbers[1] : 0);
      if (settings.QK.mode === "matrix") settings.QK = { mode: "identity" };
      freshStart();
    }),
    segmented("clock", () => settings.clock, (value) => {
      settings.clock = value;
    }),
    segmented("colours", () => settings.colours, (value) => {
      settings.colours = value;
    }),
    checkbox("causal", () => settings.causal, (value) => {
      settings.causal = value;
      rerule();
      describe();
    }),
    checkbox("centers", () => settings.centers, (value) => {
      settings.centers = value;
    }),
    checkbox("trails", () => settings.trails, (value) => {
      settings.trails = value;
      run.history = [];
    }),
    select("vmode", () => settings.V.mode, (mode) => {
      const { d } = settings;
      const third = settings.V.mode === "matrix" ? 0.2 : settings.V.numbers[2];
      if (mode === "matrix") settings.V = { mode, numbers: Array.from(matrixOfV(settings)) };
      else if (mode === "pair") settings.V = { mode, numbers: d === 2 ? [1, 2] : [1, 2, Math.min(third, 0.2)] };
      else settings.V = { mode, numbers: Array(d).fill(1) };
      rerule();
    }),
    select("qkmode", () => settings.QK.mode, (mode) => {
      const [Q, K] = matricesOfQK(settings).map((a) => Array.from(a));
      settings.QK = mode === "matrix" ? { mode, Q, K } : { mode };
      rerule();
    }),
    matrixField("vmatrix", () => (settings.V.mode === "matrix" ? settings.V.numbers : null), (list) => {
      settings.V.numbers = list;
      rerule();
    }),
    matrixField("qmatrix", () => settings.QK.Q, (list) => {
      settings.QK.Q = list;
      rerule();
    }),
    matrixField("kmatrix", () => settings.QK.K, (list) => {
      settings.QK.K = list;
      rerule();
    }),
  );

  const showControls = () => {
    for (const show of shows) show();
    const { mode } = settings.V;
    const labels = mode === "pair" ? ["real part", "turn rate", "third eigenvalue"] : ["eigenvalue of e₁", "eigenvalue of e₂", "eigenvalue of e₃"];
    labels.forEach((text, i) => setText($(`v${i + 1}-label`), text));
    const visible = {
      eigenvalues: mode !== "matrix",
      third: mode !== "matrix" && settings.d === 3,
      "shear-row": mode === "real",
      "vmatrix-row": mode === "matrix",
      "qkseed-row": settings.QK.mode === "random",
      "qk-matrices": settings.QK.mode === "matrix",
      "steady-row": settings.clock === "steady",
      "growing-row": settings.clock === "growing",
    };
    for (const [name, yes] of Object.entries(visible)) $(name).hidden = !yes;
    showDelta();
    showPlaying();
  };

  const copyLink = async () => {
    const hash = `#${toLink()}`;
    const address = location.href.split("#")[0] + hash;
    try {
      history.replaceState(null, "", hash);
    } catch {
      loading = true;
      location.hash = hash;
    }
    try {
      await navigator.clipboard.writeText(address);
      say("The link is in the clipboard and in the address bar.");
    } catch {
      say("The link is in the address bar.");
    }
  };

  const ACTIONS = {
    play: () => (playing ? pause() : play()),
    step: stepOnce,
    restart,
    fresh: () => {
      settings.seed = (settings.seed + 1) % 4294967296;
      freshStart();
      showControls();
      describe();
    },
    link: copyLink,
    front: () => {
      settings.azimuth = DEFAULTS.azimuth;
      settings.elevation = DEFAULTS.elevation;
      refresh();
    },
  };
  for (const button of root.querySelectorAll("[data-do]")) {
    button.addEventListener("click", () => {
      ACTIONS[button.dataset.do]();
      showPlaying();
    });
  }

  root.querySelector("form").addEventListener("submit", (event) => event.preventDefault());

  for (const button of document.querySelectorAll("button[data-try]")) {
    button.disabled = false;
    button.addEventListener("click", () => {
      if (!tryLink(button.dataset.try)) return;
      root.scrollIntoView({ block: "start", behavior: reduced.matches ? "auto" : "smooth" });
      stage.focus({ preventScroll: true });
      if (reduced.matches) return;
      reveal();
      play();
    });
  }

  // --- pointer and keys on the stage -----------------------------------------------------------------

  const at = (event) => {
    const box = stage.getBoundingClientRect();
    return [((event.clientX - box.left) * size) / box.width, ((event.clientY - box.top) * size) / box.height];
  };

  /** The token under a point of the stage, or -1; on the sphere, of the front half. */
  const tokenAt = (x, y, reach) => {
    let best = -1;
    let least = reach * reach;
    projectTokens();
    for (let k = 0; k < settings.n; k++) {
      if (screen[3 * k + 2] < 0) continue;
      const square = (screen[3 * k] - x) ** 2 + (screen[3 * k + 1] - y) ** 2;
      if (square < least) {
        least = square;
        best = k;
      }
    }
    return best;
  };

  /** The place on the circle or on the front half of the sphere under a point of the stage. */
  const placeAt = (x, y) => {
    const R = globeRadius();
    const [a, b] = [(x - size / 2) / R, (size / 2 - y) / R];
    if (settings.d === 2) return [a, b];
    const square = a * a + b * b;
    const c = square < 1 ? Math.sqrt(1 - square) : 0;
    const m = camera();
    return [0, 1, 2].map((i) => a * m[i] + b * m[3 + i] + c * m[6 + i]);
  };

  const turn = (right, up) => {
    settings.azimuth -= right;
    settings.elevation = Math.max(-1.5, Math.min(1.5, settings.elevation + up));
    refresh();
  };

  let drag = null;
  const reachOf = (event) => (event.pointerType === "touch" ? 22 : 12);

  stage.addEventListener("pointerdown", (event) => {
    invited = false;
    showPlaying();
    const [x, y] = at(event);
    const token = tokenAt(x, y, reachOf(event));
    drag = { token, x, y, moved: false };
    if (token >= 0) {
      run.selected = token;
      showControls();
      refresh();
    }
    stage.setPointerCapture(event.pointerId);
  });
  stage.addEventListener("pointermove", (event) => {
    const [x, y] = at(event);
    if (!drag) {
      const token = tokenAt(x, y, reachOf(event));
      if (token !== run.hovered) {
        run.hovered = token;
        stage.style.cursor = token >= 0 ? "grab" : settings.d === 3 ? "move" : "default";
        refresh();
      }
      return;
    }
    if (!drag.moved && Math.hypot(x - drag.x, y - drag.y) < 3) return;
    drag.moved = true;
    if (drag.token >= 0) {
      settle();
      put(drag.token, placeAt(x, y));
      showPlaying();
    } else if (settings.d === 3) {
      turn((x - drag.x) / 150, (y - drag.y) / 150);
      drag.x = x;
      drag.y = y;
    }
  });
  const drop = () => {
    if (drag && drag.token < 0 && !drag.moved && run.selected >= 0) {
      run.selected = -1;
      showControls();
      refresh();
    }
    if (drag?.moved) describe();
    drag = null;
  };
  stage.addEventListener("pointerup", drop);
  stage.addEventListener("pointercancel", drop);
  stage.addEventListener("pointerleave", () => {
    run.hovered = -1;
    refresh();
  });
  // a finger on a token drags it; elsewhere it may scroll the page
  stage.addEventListener(
    "touchstart",
    (event) => {
      const [x, y] = at(event.touches[0]);
      if (event.touches.length === 1 && tokenAt(x, y, 22) >= 0) event.preventDefault();
    },
    { passive: false },
  );

  const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

  const nudge = (k, [right, up], fine) => {
    const { d } = settings;
    const amount = fine ? 0.005 : 0.05;
    const x = Array.from(run.sim.x.slice(k * d, (k + 1) * d));
    settle();
    if (d === 2) {
      const angle = -amount * (right + up) * (up ? -1 : 1); // left and up turn it anticlockwise
      const [c, s] = [Math.cos(angle), Math.sin(angle)];
      put(k, [c * x[0] - s * x[1], s * x[0] + c * x[1]]);
      return;
    }
    const m = camera();
    const along = [0, 1, 2].map((i) => right * m[i] + up * m[3 + i]);
    const radial = dot(along, x);
    const tangent = along.map((v, i) => v - radial * x[i]);
    const length = Math.hypot(...tangent);
    if (length < 1e-9) return;
    put(k, x.map((v, i) => v + (amount * tangent[i]) / length));
  };

  stage.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const arrow = ARROWS[event.key];
    const { n } = settings;
    if (arrow && run.selected >= 0) nudge(run.selected, arrow, event.shiftKey);
    else if (arrow && settings.d === 3) turn(arrow[0] * 0.1, -arrow[1] * 0.1);
    else if (event.key === ".") run.selected = (run.selected + 1) % n;
    else if (event.key === ",") run.selected = (Math.max(run.selected, 0) - 1 + n) % n;
    else if (event.key === "Escape" && run.selected >= 0) run.selected = -1;
    else if (event.key === " ") ACTIONS.play();
    else if (event.key === "s") ACTIONS.step();
    else if (event.key === "r") ACTIONS.restart();
    else return;
    event.preventDefault();
    showControls();
    refresh();
    describe();
  });

  // --- links that arrive, and the start --------------------------------------------------------------

  let loading = false;

  /** Load a state given as text; say what is wrong with it and show the default otherwise. */
  const tryLink = (text) => {
    try {
      apply(fromLink(text));
      say("");
      return true;
    } catch (error) {
      apply({ settings: copy(DEFAULTS), t: 0, start: null, x: null, token: 0 });
      say(`This link cannot be opened: ${error.message}. You see the standard start instead.`, true);
      return false;
    }
  };

  const readAddress = () => {
    let text = location.hash.slice(1);
    try {
      text = decodeURIComponent(text);
    } catch {
      // an odd percent sign; the reader below will refuse it
    }
    if (text === "" || (!text.startsWith(MARK) && document.getElementById(text))) return false;
    tryLink(text);
    return true;
  };

  window.addEventListener("hashchange", () => {
    if (!loading) readAddress();
    loading = false;
  });

  new ResizeObserver(measure).observe(stage);
  new MutationObserver(readTheme).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });

  root.hidden = false;
  readTheme();
  measure();
  if (!readAddress()) apply({ settings: copy(DEFAULTS), t: 0, start: null, x: null, token: 0 });

  // --- for tests and the console ---------------------------------------------------------------------

  const list = (x) => Array.from(x ?? []).flat();

  window.csaPlayground = {
    /** Settings, time and whether it plays. */
    state: () => ({
      ...copy(settings),
      t: run.sim.t,
      moved: run.moved,
      playing,
      selected: run.selected + 1,
      clusters: run.clusters.count,
      diameter: D.diameter(run.sim.x, run.sim.d),
      since: run.since,
      centers: copy(run.centers),
      steps: run.sim.steps,
      link: toLink(),
    }),
    /** Load a link, or {d, beta, causal, Q, K, V, x} with matrices and tokens as (nested) lists. */
    load: (given) => {
      if (typeof given === "string") return apply(fromLink(given.replace(/^#/, "")));
      const { d = 3, beta, causal, Q, K, V, x, ...rest } = given;
      const s = { ...copy(DEFAULTS), V: { mode: "real", numbers: Array(d).fill(1) }, d, ...rest };
      choice(String(d), ["2", "3"], "d");
      if (beta !== undefined) s.beta = beta;
      if (causal !== undefined) s.causal = causal;
      if (V) s.V = { mode: "matrix", numbers: numbers(list(V), d * d, ENTRY, "V") };
      if (Q || K) {
        const unit = Array.from({ length: d * d }, (_, i) => (i % (d + 1) ? 0 : 1));
        s.QK = { mode: "matrix", Q: numbers(list(Q ?? unit), d * d, ENTRY, "Q"), K: numbers(list(K ?? unit), d * d, ENTRY, "K") };
      }
      if (x) s.n = list(x).length / d;
      for (const key of Object.keys(NUMBERS)) if (key in s) number(s[key], NUMBERS[key]);
      const start = x ? checkTokens(Float64Array.from(list(x)), d, s.n, "x") : null;
      return apply({ settings: s, t: 0, start, x: null, token: 0 });
    },
    /** Go on to exactly the time t, however long it takes. */
    advance: (t) => {
      run.sim.advance(t);
      observe();
      showPlaying();
      refresh();
    },
    /** Tokens as a list of n lists of d numbers. */
    positions: () => Array.from({ length: run.sim.n }, (_, k) => Array.from(run.sim.x.slice(k * run.sim.d, (k + 1) * run.sim.d))),
    play,
    pause,
    /** Milliseconds of recent frames: solver, drawing, and from frame to frame. */
    timing: () => copy(timing),
  };
})();
