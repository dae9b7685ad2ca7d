/**
 * What the playground and the front page draw alike: the star of the first token, the
 * colours of the others by their order, powers of ten.  No page, no state.
 */
globalThis.csaDrawing = (() => {
  "use strict";

  /** Colour of the first token, as in all figures. */
  const FIRST = "#D55E00";

  // matplotlib's cividis at 0, 0.1, ..., 1
  // prettier-ignore
  const CIVIDIS = [[0, 34, 78], [8, 51, 112], [53, 69, 108], [79, 87, 108], [102, 105, 112], [125, 124, 120],
    [148, 142, 119], [174, 163, 113], [200, 184, 102], [229, 207, 82], [254, 232, 56]];

  /**
   * A colour for a place in the sequence.
   * @param {number} part from 0 (first) to 1 (last)
   * @returns {string}
   */
  const cividis = (part) => {
    const at = Math.min(9.999999, Math.max(0, part * 10));
    const i = Math.floor(at);
    const mix = (a) => Math.round(CIVIDIS[i][a] + (at - i) * (CIVIDIS[i + 1][a] - CIVIDIS[i][a]));
    return `rgb(${mix(0)}, ${mix(1)}, ${mix(2)})`;
  };

  /** Trace a star with its points at the distance r from (x, y). */
  const star = (context, x, y, r) => {
    context.beginPath();
    for (let i = 0; i < 10; i++) {
      const a = (i * Math.PI) / 5 - Math.PI / 2;
      const s = i % 2 ? r * 0.45 : r;
      context.lineTo(x + s * Math.cos(a), y + s * Math.sin(a));
    }
    context.closePath();
  };

  /** The text of 10 to the power e, a whole number >= 0. */
  const power = (e) => `10${String(e).replace(/\d/g, (c) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[c])}`;

  return { FIRST, cividis, power, star };
})();
