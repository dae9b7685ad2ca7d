// Plays recorded tokens on the circle or the sphere: no kernel, no network, no library.
// The page holds <figure class="csa-player"> elements; this sets up all that are new.
(() => {
  const decode = (text) => {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    return new Int16Array(bytes.buffer);
  };

  // Orthographic picture of a point; a is the azimuth, e the elevation of the viewer.
  const look = (p, a, e) => {
    if (p.length === 2) return [p[0], p[1], 0];
    const [ca, sa, ce, se] = [Math.cos(a), Math.sin(a), Math.cos(e), Math.sin(e)];
    const forward = ca * p[0] + sa * p[1];
    return [ca * p[1] - sa * p[0], ce * p[2] - se * forward, ce * forward + se * p[2]];
  };

  const setUp = (root) => {
    root.dataset.ready = "yes";
    const meta = JSON.parse(root.dataset.meta);
    const times = meta.t;
    const last = times.length - 1;
    const slider = root.querySelector("input");
    const button = root.querySelector("button");
    const readout = root.querySelector("output");
    const panels = [...root.querySelectorAll("svg")].map((svg) => ({
      svg,
      frames: decode(svg.dataset.frames),
      tokens: [...svg.querySelectorAll(".csa-token")],
      rings: [...svg.querySelectorAll("polyline")],
    }));
    let [azimuth, elevation] = meta.view;
    let playing = null;

    // Token k of a panel at a fractional frame, back on the sphere after interpolation.
    const position = (panel, k, frame) => {
      const i = Math.min(Math.floor(frame), last - 1);
      const part = frame - i;
      const n = panel.tokens.length;
      const p = [];
      for (let c = 0; c < meta.d; c++) {
        const at = (j) => panel.frames[(j * n + k) * meta.d + c];
        p.push(last === 0 ? at(0) : (1 - part) * at(i) + part * at(i + 1));
      }
      const norm = Math.hypot(...p) || 1;
      return p.map((v) => v / norm);
    };

    const draw = () => {
      const frame = Number(slider.value);
      const i = Math.min(Math.floor(frame), Math.max(last - 1, 0));
      const t = last === 0 ? times[0] : times[i] + (frame - i) * (times[i + 1] - times[i]);
      readout.textContent = "t = " + (t >= 100 ? t.toFixed(0) : t.toFixed(2));
      slider.setAttribute("aria-valuetext", readout.textContent);
      for (const panel of panels) {
        panel.tokens.forEach((token, k) => {
          const [x, y, depth] = look(position(panel, k, frame), azimuth, elevation);
          token.setAttribute("transform", `translate(${(100 * x).toFixed(2)} ${(-100 * y).toFixed(2)})`);
          token.setAttribute("opacity", depth < -1e-9 ? 0.35 : 1);
        });
        panel.rings.forEach((ring, r) => {
          const points = [];
          for (let s = 0; s <= 72; s++) {
            const [c, w] = [Math.cos((s * Math.PI) / 36), Math.sin((s * Math.PI) / 36)];
            const [x, y] = look([[c, w, 0], [c, 0, w], [0, c, w]][r], azimuth, elevation);
            points.push(`${(100 * x).toFixed(1)},${(-100 * y).toFixed(1)}`);
          }
          ring.setAttribute("points", points.join(" "));
        });
      }
    };

    const label = (text, sign) => {
      button.setAttribute("aria-label", text);
      button.textContent = sign;
    };
    const stop = () => {
      if (playing !== null) cancelAnimationFrame(playing);
      playing = null;
      label("play", "▶");
    };
    const play = () => {
      if (Number(slider.value) >= last) slider.value = 0;
      let before = null;
      const step = (now) => {
        if (!root.isConnected) return;
        if (before !== null) {
          slider.value = Math.min(last, Number(slider.value) + ((now - before) / 1000 / meta.seconds) * last);
          draw();
        }
        before = now;
        if (Number(slider.value) >= last) stop();
        else playing = requestAnimationFrame(step);
      };
      label("pause", "❚❚");
      playing = requestAnimationFrame(step);
    };

    button.addEventListener("click", () => (playing === null ? play() : stop()));
    slider.addEventListener("input", () => {
      stop();
      draw();
    });
    const turn = (right, up) => {
      azimuth -= right;
      elevation = Math.max(-1.5, Math.min(1.5, elevation + up));
      draw();
    };
    if (meta.d === 3) {
      for (const { svg } of panels) {
        svg.addEventListener("pointerdown", (event) => svg.setPointerCapture(event.pointerId));
        svg.addEventListener("pointermove", (event) => {
          if (svg.hasPointerCapture(event.pointerId)) turn(event.movementX / 90, event.movementY / 90);
        });
        svg.addEventListener("keydown", (event) => {
          const move = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] };
          if (move[event.key]) {
            event.preventDefault();
            turn(...move[event.key]);
          }
        });
      }
    }
    root.querySelector(".csa-controls").hidden = false;
    draw();
  };

  document.querySelectorAll("figure.csa-player:not([data-ready])").forEach(setUp);
})();
