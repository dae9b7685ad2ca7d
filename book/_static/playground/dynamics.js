/**
 * Causal attention dynamics: field, Jacobian, solvers, random starts, observables.
 *
 * Tokens x_1 .. x_n are unit vectors in R^d, d = 2 or 3, and move by
 *
 *     x_k' = P_k sum_j w_kj V x_j,    w_kj = softmax over j of beta <Q x_k, K x_j>,
 *
 * where P_k y = y - <x_k, y> x_k.  Under the causal mask the sums run over j <= k,
 * without it over all j.  Time and beta have no unit, distances are in radians.
 *
 * Arrays of tokens are Float64Array(n * d), token by token.  Matrices are
 * Float64Array(d * d), row by row.  Tokens are counted from 0 here.
 *
 * There is no document and no library in here: the file works in a page (as the
 * global `csaDynamics`) and with require().  Everything is built from + - * / and
 * square roots, even the exponential, so every browser computes the same bits;
 * only distances use atan2.
 *
 * Inside, tokens and matrices are padded to three coordinates with zeros.
 */
globalThis.csaDynamics = (() => {
  "use strict";

  /**
   * One attention system.
   * @typedef {object} System
   * @property {number} d dimension, 2 or 3
   * @property {Float64Array} Q query matrix, d * d numbers
   * @property {Float64Array} K key matrix
   * @property {Float64Array} V value matrix
   * @property {number} beta inverse temperature, >= 0
   * @property {boolean} causal with the mask or without
   */

  // --- exponential ---------------------------------------------------------------

  const LOG2E_64 = 64 * 1.4426950408889634;
  const LN2_64_HIGH = 6.93147180369123816490e-1 / 64; // 33 bits, so that k times it is exact
  const LN2_64_LOW = 1.90821492927058770002e-10 / 64;
  const ROUND = 6755399441055744; // 1.5 * 2^52: adding it rounds to a whole number
  const POWERS = Float64Array.from({ length: 1023 }, (_, i) => 2 ** -i);
  // 2^(-i / 64), by Taylor's series, summed from its small end
  const ROOTS = Float64Array.from({ length: 64 }, (_, i) => {
    const z = -i * LN2_64_HIGH - i * LN2_64_LOW;
    let sum = 1;
    for (let m = 22; m > 0; m--) sum = 1 + (z / m) * sum;
    return sum;
  });

  /**
   * e^z for z <= 0, relative error below 5e-16; 0 below z = -708.
   * With whole k, z = k log(2) / 64 + r, |r| <= log(2) / 128, and a polynomial in r.
   */
  const exp = (z) => {
    if (!(z > -708)) return z !== z ? z : 0;
    const k = z * LOG2E_64 + ROUND - ROUND;
    const r = z - k * LN2_64_HIGH - k * LN2_64_LOW;
    const i = -k | 0;
    const square = r * r;
    const p = r + square * (1 / 2 + r * (1 / 6) + square * (1 / 24 + r * (1 / 120)));
    const root = ROOTS[i & 63];
    return (root + root * p) * POWERS[i >> 6];
  };

  // --- the system, padded to three coordinates --------------------------------------

  const padTokens = (x, d, n) => {
    if (d === 3) return Float64Array.from(x);
    const y = new Float64Array(3 * n);
    for (let k = 0; k < n; k++) {
      y[3 * k] = x[2 * k];
      y[3 * k + 1] = x[2 * k + 1];
    }
    return y;
  };

  const unpadTokens = (y, d, n, out = new Float64Array(n * d)) => {
    for (let k = 0; k < n; k++) for (let c = 0; c < d; c++) out[k * d + c] = y[3 * k + c];
    return out;
  };

  const padMatrix = (a, d) => {
    const b = new Float64Array(9);
    for (let i = 0; i < d; i++) for (let j = 0; j < d; j++) b[3 * i + j] = a[i * d + j];
    return b;
  };

  /**
   * What the formulas need of a system.  V is split as v I + V0 with v = trace / d: a
   * token's own value v x_k has no tangent part, so the self term is P_k V0 x_k.  For
   * V = v I it is exactly zero, and forces as small as 1e-50 keep all their digits.
   * B = beta K^T Q, so that logit_kj = <x_j, B x_k>.
   */
  const open = (system) => {
    const { d, beta, causal } = system;
    if (d !== 2 && d !== 3) throw new RangeError(`d must be 2 or 3, got ${d}`);
    const [Q, K, V] = [system.Q, system.K, system.V].map((a) => padMatrix(a, d));
    const B = new Float64Array(9);
    for (let i = 0; i < 3; i++) {
      for (let j = 0; j < 3; j++) {
        B[3 * i + j] = beta * (K[i] * Q[j] + K[3 + i] * Q[3 + j] + K[6 + i] * Q[6 + j]);
      }
    }
    let same = true; // (c + c + c) / 3 need not be c
    let v = 0;
    for (let i = 0; i < d; i++) {
      same = same && V[4 * i] === V[0];
      v += V[4 * i] / d;
    }
    if (same) v = V[0];
    const V0 = Float64Array.from(V);
    for (let i = 0; i < d; i++) V0[4 * i] -= v;
    return { d, causal: Boolean(causal), V, V0, B };
  };

  const multiply = (a, n, x, out) => {
    const [a0, a1, a2, a3, a4, a5, a6, a7, a8] = a;
    for (let i = 0; i < 3 * n; i += 3) {
      const p = x[i];
      const q = x[i + 1];
      const r = x[i + 2];
      out[i] = a0 * p + a1 * q + a2 * r;
      out[i + 1] = a3 * p + a4 * q + a5 * r;
      out[i + 2] = a6 * p + a7 * q + a8 * r;
    }
  };

  // --- the field --------------------------------------------------------------------

  /** Scratch memory for n tokens. */
  const scratch = (n) => ({
    value: new Float64Array(3 * n),
    query: new Float64Array(3 * n),
    own: new Float64Array(3 * n),
    logit: new Float64Array(n),
  });

  /**
   * Velocities of n padded unit tokens x, into out.  Each term is projected before it
   * is added, and the largest logit of the row is subtracted from all.
   */
  const velocities = (model, n, x, out, work) => {
    const { value, query, own, logit } = work;
    multiply(model.V, n, x, value);
    multiply(model.B, n, x, query);
    multiply(model.V0, n, x, own);
    for (let k = 0; k < n; k++) {
      const i = 3 * k;
      const x0 = x[i];
      const x1 = x[i + 1];
      const x2 = x[i + 2];
      const q0 = query[i];
      const q1 = query[i + 1];
      const q2 = query[i + 2];
      const seen = model.causal ? k + 1 : n;
      let top = -Infinity;
      for (let j = 0, m = 0; j < seen; j++, m += 3) {
        const l = q0 * x[m] + q1 * x[m + 1] + q2 * x[m + 2];
        logit[j] = l;
        if (l > top) top = l;
      }
      const wk = exp(logit[k] - top);
      const c = own[i] * x0 + own[i + 1] * x1 + own[i + 2] * x2;
      let sum = wk;
      let f0 = wk * (own[i] - c * x0);
      let f1 = wk * (own[i + 1] - c * x1);
      let f2 = wk * (own[i + 2] - c * x2);
      for (let j = 0, m = 0; j < seen; j++, m += 3) {
        if (j === k) continue;
        const w = exp(logit[j] - top);
        const v0 = value[m];
        const v1 = value[m + 1];
        const v2 = value[m + 2];
        const e = v0 * x0 + v1 * x1 + v2 * x2;
        sum += w;
        f0 += w * (v0 - e * x0);
        f1 += w * (v1 - e * x1);
        f2 += w * (v2 - e * x2);
      }
      out[i] = f0 / sum;
      out[i + 1] = f1 / sum;
      out[i + 2] = f2 / sum;
    }
  };

  /**
   * Velocity of every token.
   * @param {System} system
   * @param {Float64Array} x n * d numbers, unit tokens
   * @param {Float64Array} [out] n * d numbers
   * @returns {Float64Array} out
   */
  const field = (system, x, out = new Float64Array(x.length)) => {
    const model = open(system);
    const n = x.length / model.d;
    const f = new Float64Array(3 * n);
    velocities(model, n, padTokens(x, model.d, n), f, scratch(n));
    return unpadTokens(f, model.d, n, out);
  };

  // --- causal attention: a linearly implicit method ---------------------------------

  // RODAS, order 4 with an embedded solution of order 3, L-stable and stiffly accurate:
  // E. Hairer, G. Wanner, Solving Ordinary Differential Equations II, section IV.7.
  const GAMMA = 0.25;
  const A = [
    [],
    [1.544],
    [0.9466785280815826, 0.2557011698983284],
    [3.314825187068521, 2.896124015972201, 0.9986419139977817],
    [1.221224509226641, 6.019134481288629, 12.53708332932087, -0.687886036105895],
    [1.221224509226641, 6.019134481288629, 12.53708332932087, -0.687886036105895, 1],
  ];
  const C = [
    [],
    [-5.6688],
    [-2.430093356833875, -0.2063599157091915],
    [-0.1073529058151375, -9.594562251023355, -20.47028614809616],
    [7.496443313967647, -10.24680431464352, -33.99990352819905, 11.7089089320616],
    [8.083246795921522, -7.981132988064893, -31.52159432874371, 16.31930543123136, -6.058818238834054],
  ];

  /**
   * The implicit stepper for n tokens under the mask.
   *
   * A step from x works in the tangent planes at the tokens: y_k = x_k + E_k z_k, where
   * the columns of E_k span the plane and y_k / |y_k| is the token.  There the equation
   * reads z_k' = |y_k| (E_k^T F_k - <x_k, F_k> z_k), F at the tokens y / |y|; it is the
   * homogeneous continuation |y| F(y / |y|), less its part along y, which only changes
   * lengths.  So rounding errors of lengths cannot be blown up by a long step.
   *
   * Token k does not see later tokens, hence the Jacobian is block lower triangular,
   * and each of the six linear systems of a step is solved token by token.
   */
  const implicitStepper = (model, n) => {
    const work = scratch(n);
    const weight = new Float64Array((n * (n - 1)) / 2); // w_kj, j < k, at k (k - 1) / 2 + j
    const F = new Float64Array(3 * n);
    const basis = new Float64Array(6 * n); // the two columns of E_k
    const block = new Float64Array(4 * n); // E_k^T (dF_k / dx_k) E_k, row by row
    const G = new Float64Array(3 * n); // B x_k
    const VX = new Float64Array(3 * n);
    const U = Array.from({ length: 6 }, () => new Float64Array(2 * n));
    const move = new Float64Array(3 * n); // E_k U_k of the present stage
    const vmove = new Float64Array(3 * n); // V times it
    const y = new Float64Array(3 * n);
    const f = new Float64Array(3 * n);
    const size = new Float64Array(n);
    let growth = 0;

    /** Everything at the start x of a step that does not depend on its length. */
    const prepare = (x) => {
      const { V0, B } = model;
      const flat = model.d === 2;
      multiply(model.V, n, x, VX);
      multiply(B, n, x, G);
      const S = new Float64Array(9);
      growth = 0;
      for (let k = 0; k < n; k++) {
        const i = 3 * k;
        const x0 = x[i];
        const x1 = x[i + 1];
        const x2 = x[i + 2];
        const g0 = G[i];
        const g1 = G[i + 1];
        const g2 = G[i + 2];
        const row = (k * (k - 1)) / 2;
        const own = g0 * x0 + g1 * x1 + g2 * x2;
        let top = own;
        for (let j = 0, m = 0; j < k; j++, m += 3) {
          const l = g0 * x[m] + g1 * x[m + 1] + g2 * x[m + 2];
          weight[row + j] = l;
          if (l > top) top = l;
        }
        let wk = exp(own - top);
        let sum = wk;
        for (let j = 0; j < k; j++) {
          const w = exp(weight[row + j] - top);
          weight[row + j] = w;
          sum += w;
        }
        wk /= sum;
        // own value, less its multiple of x_k
        const o0 = V0[0] * x0 + V0[1] * x1 + V0[2] * x2;
        const o1 = V0[3] * x0 + V0[4] * x1 + V0[5] * x2;
        const o2 = V0[6] * x0 + V0[7] * x1 + V0[8] * x2;
        const rate = o0 * x0 + o1 * x1 + o2 * x2;
        const p0 = o0 - rate * x0;
        const p1 = o1 - rate * x1;
        const p2 = o2 - rate * x2;
        let f0 = wk * p0;
        let f1 = wk * p1;
        let f2 = wk * p2;
        let inner = wk * rate; // sum of w_kj <x_k, V x_j>, less w_kk v
        let m0 = wk * x0; // sum of w_kj x_j
        let m1 = wk * x1;
        let m2 = wk * x2;
        // S = sum of w_kj (P_k V x_j) x_j^T
        let s0 = f0 * x0, s1 = f0 * x1, s2 = f0 * x2;
        let s3 = f1 * x0, s4 = f1 * x1, s5 = f1 * x2;
        let s6 = f2 * x0, s7 = f2 * x1, s8 = f2 * x2;
        for (let j = 0, m = 0; j < k; j++, m += 3) {
          const w = weight[row + j] / sum;
          weight[row + j] = w;
          const v0 = VX[m];
          const v1 = VX[m + 1];
          const v2 = VX[m + 2];
          const e = v0 * x0 + v1 * x1 + v2 * x2;
          const a0 = w * (v0 - e * x0);
          const a1 = w * (v1 - e * x1);
          const a2 = w * (v2 - e * x2);
          const z0 = x[m];
          const z1 = x[m + 1];
          const z2 = x[m + 2];
          inner += w * e;
          f0 += a0; f1 += a1; f2 += a2;
          m0 += w * z0; m1 += w * z1; m2 += w * z2;
          s0 += a0 * z0; s1 += a0 * z1; s2 += a0 * z2;
          s3 += a1 * z0; s4 += a1 * z1; s5 += a1 * z2;
          s6 += a2 * z0; s7 += a2 * z1; s8 += a2 * z2;
        }
        F[i] = f0;
        F[i + 1] = f1;
        F[i + 2] = f2;
        frame(x0, x1, x2, flat, basis, 6 * k);
        S[0] = s0 - f0 * m0; S[1] = s1 - f0 * m1; S[2] = s2 - f0 * m2;
        S[3] = s3 - f1 * m0; S[4] = s4 - f1 * m1; S[5] = s5 - f1 * m2;
        S[6] = s6 - f2 * m0; S[7] = s7 - f2 * m1; S[8] = s8 - f2 * m2;
        // E^T [ S B + w_kk (p - F) g^T + w_kk V0 - inner I ] E
        const b = 6 * k;
        for (let c = 0; c < 2; c++) {
          const e0 = basis[b + 3 * c];
          const e1 = basis[b + 3 * c + 1];
          const e2 = basis[b + 3 * c + 2];
          const y0 = B[0] * e0 + B[1] * e1 + B[2] * e2;
          const y1 = B[3] * e0 + B[4] * e1 + B[5] * e2;
          const y2 = B[6] * e0 + B[7] * e1 + B[8] * e2;
          const h = wk * (g0 * e0 + g1 * e1 + g2 * e2);
          const r0 = S[0] * y0 + S[1] * y1 + S[2] * y2 + h * (p0 - f0) + wk * (V0[0] * e0 + V0[1] * e1 + V0[2] * e2);
          const r1 = S[3] * y0 + S[4] * y1 + S[5] * y2 + h * (p1 - f1) + wk * (V0[3] * e0 + V0[4] * e1 + V0[5] * e2);
          const r2 = S[6] * y0 + S[7] * y1 + S[8] * y2 + h * (p2 - f2) + wk * (V0[6] * e0 + V0[7] * e1 + V0[8] * e2);
          block[4 * k + c] = basis[b] * r0 + basis[b + 1] * r1 + basis[b + 2] * r2;
          block[4 * k + 2 + c] = basis[b + 3] * r0 + basis[b + 4] * r1 + basis[b + 5] * r2;
        }
        block[4 * k] -= inner;
        if (!flat) block[4 * k + 3] -= inner;
        // The eigenvalues of the whole Jacobian are those of its diagonal blocks.  A
        // method that damps stiff components would damp fast growth too, so no step is
        // longer than the fastest growth takes, of tokens that are not exactly at rest.
        if (f0 !== 0 || f1 !== 0 || f2 !== 0) {
          const half = (block[4 * k] - block[4 * k + 3]) / 2;
          const root = half * half + block[4 * k + 1] * block[4 * k + 2];
          const mu = (block[4 * k] + block[4 * k + 3]) / 2 + (root > 0 ? Math.sqrt(root) : 0);
          if (mu > growth) growth = mu;
        }
      }
    };

    /**
     * E_k^T times what the tokens before k contribute to the derivative of F_k when they
     * move by `move`; two numbers, into pull.
     */
    const pull = new Float64Array(2);
    const fromEarlier = (k) => {
      const i = 3 * k;
      const g0 = G[i];
      const g1 = G[i + 1];
      const g2 = G[i + 2];
      const row = (k * (k - 1)) / 2;
      let a0 = 0;
      let a1 = 0;
      let a2 = 0;
      let total = 0;
      for (let j = 0, m = 0; j < k; j++, m += 3) {
        const w = weight[row + j];
        const s = w * (g0 * move[m] + g1 * move[m + 1] + g2 * move[m + 2]);
        total += s;
        a0 += w * vmove[m] + s * VX[m];
        a1 += w * vmove[m + 1] + s * VX[m + 1];
        a2 += w * vmove[m + 2] + s * VX[m + 2];
      }
      a0 -= total * F[i];
      a1 -= total * F[i + 1];
      a2 -= total * F[i + 2];
      const b = 6 * k;
      pull[0] = basis[b] * a0 + basis[b + 1] * a1 + basis[b + 2] * a2;
      pull[1] = basis[b + 3] * a0 + basis[b + 4] * a1 + basis[b + 5] * a2;
    };

    /** Set the move of token k to E_k (p, q). */
    const setMove = (k, p, q) => {
      const i = 3 * k;
      const b = 6 * k;
      const { V } = model;
      const u0 = basis[b] * p + basis[b + 3] * q;
      const u1 = basis[b + 1] * p + basis[b + 4] * q;
      const u2 = basis[b + 2] * p + basis[b + 5] * q;
      move[i] = u0;
      move[i + 1] = u1;
      move[i + 2] = u2;
      vmove[i] = V[0] * u0 + V[1] * u1 + V[2] * u2;
      vmove[i + 1] = V[3] * u0 + V[4] * u1 + V[5] * u2;
      vmove[i + 2] = V[6] * u0 + V[7] * u1 + V[8] * u2;
    };

    /** One step of length h from x, after prepare(x); new tokens into out; the error estimate. */
    const step = (x, h, out) => {
      const pivot = 1 / (h * GAMMA);
      for (let s = 0; s < 6; s++) {
        const [as, cs] = [A[s], C[s]];
        if (s > 0) {
          for (let k = 0; k < n; k++) {
            let p = 0;
            let q = 0;
            for (let r = 0; r < s; r++) {
              p += as[r] * U[r][2 * k];
              q += as[r] * U[r][2 * k + 1];
            }
            place(x, k, p, q);
          }
          velocities(model, n, y, f, work);
        }
        const now = U[s];
        for (let k = 0; k < n; k++) {
          const i = 3 * k;
          const b = 6 * k;
          let p = 0;
          let q = 0;
          let cp = 0;
          let cq = 0;
          for (let r = 0; r < s; r++) {
            p += as[r] * U[r][2 * k];
            q += as[r] * U[r][2 * k + 1];
            cp += cs[r] * U[r][2 * k];
            cq += cs[r] * U[r][2 * k + 1];
          }
          const at = s > 0 ? f : F;
          const length = s > 0 ? size[k] : 1;
          const along = at[i] * x[i] + at[i + 1] * x[i + 1] + at[i + 2] * x[i + 2];
          fromEarlier(k);
          let rp = basis[b] * at[i] + basis[b + 1] * at[i + 1] + basis[b + 2] * at[i + 2];
          let rq = basis[b + 3] * at[i] + basis[b + 4] * at[i + 1] + basis[b + 5] * at[i + 2];
          rp = length * (rp - along * p) + cp / h + pull[0];
          rq = length * (rq - along * q) + cq / h + pull[1];
          // (pivot I - block) (p, q) = (rp, rq), eliminated with the larger pivot
          const m0 = pivot - block[4 * k];
          const m1 = -block[4 * k + 1];
          const m2 = -block[4 * k + 2];
          const m3 = pivot - block[4 * k + 3];
          if (Math.abs(m0) >= Math.abs(m2)) {
            const e = m2 / m0;
            q = (rq - e * rp) / (m3 - e * m1);
            p = (rp - m1 * q) / m0;
          } else {
            const e = m0 / m2;
            q = (rp - e * rq) / (m1 - e * m3);
            p = (rq - m3 * q) / m2;
          }
          now[2 * k] = p;
          now[2 * k + 1] = q;
          setMove(k, p, q);
        }
      }
      let error = 0;
      let farthest = 0;
      for (let k = 0; k < n; k++) {
        let p = U[4][2 * k] + U[5][2 * k];
        let q = U[4][2 * k + 1] + U[5][2 * k + 1];
        for (let r = 0; r < 4; r++) {
          p += A[4][r] * U[r][2 * k];
          q += A[4][r] * U[r][2 * k + 1];
        }
        place(x, k, p, q);
        const far = Math.abs(p) + Math.abs(q);
        const off = Math.sqrt(U[5][2 * k] ** 2 + U[5][2 * k + 1] ** 2);
        if (!(off <= error)) error = off; // so that NaN gets through
        if (!(far <= farthest)) farthest = far;
      }
      out.set(y);
      return farthest < 1 ? error : Infinity; // no token may turn by 45 degrees in one step
    };

    /** Token k at x_k + E_k (p, q), brought back to length one, into y; the length into size. */
    const place = (x, k, p, q) => {
      const i = 3 * k;
      const b = 6 * k;
      const y0 = x[i] + (basis[b] * p + basis[b + 3] * q);
      const y1 = x[i + 1] + (basis[b + 1] * p + basis[b + 4] * q);
      const y2 = x[i + 2] + (basis[b + 2] * p + basis[b + 5] * q);
      const r = Math.sqrt(y0 * y0 + y1 * y1 + y2 * y2);
      if (p === 0 && q === 0) {
        // no move, no rounding
        y[i] = x[i];
        y[i + 1] = x[i + 1];
        y[i + 2] = x[i + 2];
        size[k] = 1;
        return;
      }
      y[i] = y0 / r;
      y[i + 1] = y1 / r;
      y[i + 2] = y2 / r;
      size[k] = r;
    };

    /** The Jacobian that the steps use, as a dense matrix in padded coordinates: 3n x 3n. */
    const dense = () => {
      const J = new Float64Array(9 * n * n);
      const put = (k, j, c, p, q) => {
        // column: direction E_j e_c; spread over the coordinates of token j
        for (let a = 0; a < 3; a++) {
          const value = basis[6 * k + a] * p + basis[6 * k + 3 + a] * q;
          for (let b = 0; b < 3; b++) J[(3 * k + a) * 3 * n + 3 * j + b] += value * basis[6 * j + 3 * c + b];
        }
      };
      for (let j = 0; j < n; j++) {
        for (let c = 0; c < 2; c++) {
          move.fill(0);
          vmove.fill(0);
          setMove(j, 1 - c, c);
          put(j, j, c, block[4 * j + c], block[4 * j + 2 + c]);
          for (let k = j + 1; k < n; k++) {
            fromEarlier(k);
            put(k, j, c, pull[0], pull[1]);
          }
        }
      }
      return J;
    };

    return {
      order: 4,
      prepare,
      step,
      dense,
      /** No step may be longer than this. */
      longest: () => (growth > 0 ? 1 / growth : Infinity),
    };
  };

  /** Two unit vectors orthogonal to x and to each other; on the circle one, and zero. */
  const frame = (x0, x1, x2, flat, out, at) => {
    if (flat) {
      out[at] = -x1;
      out[at + 1] = x0;
      out.fill(0, at + 2, at + 6);
      return;
    }
    const sign = x2 >= 0 ? 1 : -1; // Duff et al., Building an orthonormal basis, revisited
    const a = -1 / (sign + x2);
    const b = x0 * x1 * a;
    out[at] = 1 + sign * x0 * x0 * a;
    out[at + 1] = sign * b;
    out[at + 2] = -sign * x0;
    out[at + 3] = b;
    out[at + 4] = sign + x1 * x1 * a;
    out[at + 5] = -x1;
  };

  /**
   * Jacobian of the field on the sphere: P_k (dF_k / dx_j) P_j, as the implicit method
   * uses it.  Under the mask only.
   * @param {System} system
   * @param {Float64Array} x n * d numbers
   * @returns {Float64Array} (n * d) * (n * d) numbers, row by row
   */
  const jacobian = (system, x) => {
    const model = open(system);
    if (!model.causal) throw new RangeError("causal must be true for the Jacobian");
    const { d } = model;
    const n = x.length / d;
    const stepper = implicitStepper(model, n);
    stepper.prepare(padTokens(x, d, n));
    const J = stepper.dense();
    const out = new Float64Array(n * d * n * d);
    for (let k = 0; k < n; k++) {
      for (let a = 0; a < d; a++) {
        for (let j = 0; j < n; j++) {
          for (let b = 0; b < d; b++) out[(k * d + a) * n * d + j * d + b] = J[(3 * k + a) * 3 * n + 3 * j + b];
        }
      }
    }
    return out;
  };

  // --- full attention: an explicit method -------------------------------------------

  // Dormand-Prince 5(4): Hairer, Norsett, Wanner, Solving Ordinary Differential Equations I, II.5.
  const DP = [
    [],
    [1 / 5],
    [3 / 40, 9 / 40],
    [44 / 45, -56 / 15, 32 / 9],
    [19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729],
    [9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656],
    [35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84],
  ];
  const DP_ERROR = [71 / 57600, 0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40];

  /** The explicit stepper, for f(y) = |y| F(y / |y|). */
  const explicitStepper = (model, n) => {
    const work = scratch(n);
    const slope = Array.from({ length: 7 }, () => new Float64Array(3 * n));
    const y = new Float64Array(3 * n);
    const size = new Float64Array(n);

    const normalise = () => {
      for (let k = 0, i = 0; k < n; k++, i += 3) {
        const r = Math.sqrt(y[i] * y[i] + y[i + 1] * y[i + 1] + y[i + 2] * y[i + 2]);
        size[k] = r;
        y[i] /= r;
        y[i + 1] /= r;
        y[i + 2] /= r;
      }
    };

    const prepare = (x) => velocities(model, n, x, slope[0], work);

    const step = (x, h, out) => {
      for (let s = 1; s < 7; s++) {
        const row = DP[s];
        for (let i = 0; i < 3 * n; i++) {
          let sum = 0;
          for (let r = 0; r < s; r++) sum += row[r] * slope[r][i];
          y[i] = x[i] + h * sum;
        }
        normalise();
        if (s === 6) out.set(y); // the last stage is the new solution
        velocities(model, n, y, slope[s], work);
        for (let i = 0; i < 3 * n; i++) slope[s][i] *= size[(i / 3) | 0];
      }
      let error = 0;
      for (let i = 0; i < 3 * n; i++) {
        let sum = 0;
        for (let r = 0; r < 7; r++) sum += DP_ERROR[r] * slope[r][i];
        const off = Math.abs(h * sum);
        if (!(off <= error)) error = off;
      }
      return error;
    };

    return { order: 5, prepare, step, longest: () => Infinity };
  };

  const stepperFor = (model, n, method) =>
    (method === undefined ? model.causal : method === "implicit") ? implicitStepper(model, n) : explicitStepper(model, n);

  // --- simulations ------------------------------------------------------------------

  /** Error that one step may make, the largest over all tokens, in radians. */
  const TOLERANCE = { implicit: 1e-8, explicit: 1e-9 };

  const clock = typeof performance === "undefined" ? Date : performance;

  /**
   * A simulation that runs on in pieces.
   * @param {System} system
   * @param {Float64Array} x0 n * d numbers, unit tokens
   * @param {{t?: number, tolerance?: number}} [options]
   * @returns {object} with t, x (n * d numbers, replaced at every call of advance),
   *   steps and rejected (counters) and the function advance
   */
  const createSimulation = (system, x0, options = {}) => {
    const model = open(system);
    const { d } = model;
    const n = x0.length / d;
    const tolerance = options.tolerance ?? (model.causal ? TOLERANCE.implicit : TOLERANCE.explicit);
    const stepper = stepperFor(model, n);
    let state = padTokens(x0, d, n);
    let next = new Float64Array(3 * n);
    let low = 0; // what t has lost to rounding: a merge may take less than one ulp of t
    let ready = false;
    let h = 0;

    const firstStep = () => {
      const norm = (a) => Math.sqrt(a.reduce((sum, v) => sum + v * v, 0));
      return Math.min(1, 0.05 / (norm(model.V) * (1 + norm(model.B)) + 1e-3));
    };

    const simulation = {
      n,
      d,
      t: options.t ?? 0,
      x: Float64Array.from(x0),
      steps: 0,
      rejected: 0,

      /**
       * Step on to the time `target`, or as near to it as fits into `budget` milliseconds.
       * At least one step is tried.
       * @param {number} target
       * @param {number} [budget]
       * @returns {boolean} whether the target was reached
       */
      advance(target, budget = Infinity) {
        const end = budget === Infinity ? Infinity : clock.now() + budget;
        if (n === 0) simulation.t = Math.max(simulation.t, target);
        if (h === 0) h = firstStep();
        let calm = true; // the last try was accepted
        while (simulation.t < target) {
          if (!ready) stepper.prepare(state);
          ready = true;
          const rest = target - simulation.t - low;
          const wish = Math.min(h, stepper.longest());
          const length = wish >= rest * (1 - 1e-12) ? rest : wish;
          const error = stepper.step(state, length, next) / tolerance;
          if (error <= 1) {
            simulation.steps++;
            [state, next] = [next, state];
            ready = false;
            if (length === rest) {
              simulation.t = target;
              low = 0;
            } else {
              const sum = length + low;
              const t = simulation.t + sum;
              low = sum - (t - simulation.t);
              simulation.t = t;
            }
            const factor = error > 0 ? 0.9 * error ** (-1 / stepper.order) : 6;
            // a step that was cut short says little about longer ones
            const proposed = length * Math.min(calm ? 6 : 1, Math.max(0.2, factor));
            h = length < wish ? Math.max(h, proposed) : proposed;
            h = Math.min(h, 1e290);
            calm = true;
          } else {
            simulation.rejected++;
            calm = false;
            const factor = error < Infinity ? 0.9 * error ** (-1 / stepper.order) : 0;
            h = length * Math.min(0.9, Math.max(0.1, factor));
            if (!(h > 1e-290)) throw new Error(`no step is short enough at t = ${simulation.t}`);
          }
          if (clock.now() >= end) break;
        }
        unpadTokens(state, d, n, simulation.x);
        return simulation.t >= target;
      },
    };
    return simulation;
  };

  /**
   * Tokens after `steps` equal steps to the time t.
   * @param {System} system
   * @param {Float64Array} x0 n * d numbers
   * @param {number} t
   * @param {number} steps
   * @param {"implicit"|"explicit"} [method] by default what createSimulation takes
   * @returns {Float64Array} n * d numbers
   */
  const fixedSteps = (system, x0, t, steps, method) => {
    const model = open(system);
    const { d } = model;
    const n = x0.length / d;
    const stepper = stepperFor(model, n, method);
    let state = padTokens(x0, d, n);
    let next = new Float64Array(3 * n);
    for (let i = 0; i < steps; i++) {
      stepper.prepare(state);
      stepper.step(state, t / steps, next);
      [state, next] = [next, state];
    }
    return unpadTokens(state, d, n);
  };

  // --- random numbers ---------------------------------------------------------------

  /**
   * Uniform numbers in [0, 1) with 53 bits: sfc32 (C. Doty-Humphrey), seeded by two
   * whole numbers below 2^32.  Integer arithmetic only.
   * @param {number} seed
   * @param {number} [stream] independent numbers from the same seed
   * @returns {function(): number}
   */
  const random = (seed, stream = 0) => {
    let [a, b, c, counter] = [0x9e3779b9, seed >>> 0, stream >>> 0, 1];
    const bits = () => {
      const sum = (((a + b) | 0) + counter) | 0;
      counter = (counter + 1) | 0;
      a = b ^ (b >>> 9);
      b = (c + (c << 3)) | 0;
      c = (((c << 21) | (c >>> 11)) + sum) | 0;
      return sum >>> 0;
    };
    for (let i = 0; i < 16; i++) bits();
    return () => ((bits() >>> 5) * 67108864 + (bits() >>> 6)) / 9007199254740992;
  };

  /**
   * n independent uniform points on the circle or the sphere: points of the ball, by
   * rejection, brought to length one.  Token k is the same for every n > k.
   * @param {number} seed
   * @param {number} n
   * @param {number} d
   * @returns {Float64Array} n * d numbers
   */
  const uniformTokens = (seed, n, d) => {
    const draw = random(seed, d);
    const x = new Float64Array(n * d);
    for (let k = 0; k < n; ) {
      let square = 0;
      for (let c = 0; c < d; c++) {
        const u = 2 * draw() - 1;
        x[k * d + c] = u;
        square += u * u;
      }
      if (square > 1 || square < 1e-6) continue;
      const length = Math.sqrt(square);
      for (let c = 0; c < d; c++) x[k * d + c] /= length;
      k++;
    }
    return x;
  };

  /**
   * A d x d matrix with independent, nearly Gaussian entries of mean 0 and variance 1:
   * each is a sum of twelve uniform numbers, less 6, which needs no logarithm.
   * @param {number} seed
   * @param {number} d
   * @param {number} stream
   * @returns {Float64Array} d * d numbers
   */
  const randomMatrix = (seed, d, stream) => {
    const draw = random(seed, 100 * stream + d);
    return Float64Array.from({ length: d * d }, () => {
      let sum = -6;
      for (let i = 0; i < 12; i++) sum += draw();
      return sum;
    });
  };

  // --- observables ------------------------------------------------------------------

  /** Squared chord between tokens j and k. */
  const chord = (x, d, j, k) => {
    let sum = 0;
    for (let c = 0; c < d; c++) {
      const e = x[j * d + c] - x[k * d + c];
      sum += e * e;
    }
    return sum;
  };

  /**
   * Geodesic distance of tokens j and k in radians, accurate for near and far ones.
   * @param {Float64Array} x
   * @param {number} d
   * @param {number} j
   * @param {number} k
   * @returns {number}
   */
  const distance = (x, d, j, k) => {
    let sum = 0;
    for (let c = 0; c < d; c++) {
      const e = x[j * d + c] + x[k * d + c];
      sum += e * e;
    }
    return 2 * Math.atan2(Math.sqrt(chord(x, d, j, k)), Math.sqrt(sum));
  };

  /**
   * Renyi centers: farther than delta from every earlier center.  Strong Renyi centers:
   * farther than delta from every earlier token.  Token 0 is both.
   * @param {Float64Array} x n * d numbers
   * @param {number} d
   * @param {number} delta radians
   * @returns {{renyi: number[], strong: number[]}} increasing indices
   */
  const centers = (x, d, delta) => {
    const n = x.length / d;
    const renyi = [];
    const strong = [];
    for (let k = 0; k < n; k++) {
      if (renyi.every((j) => distance(x, d, j, k) > delta)) {
        renyi.push(k);
        let alone = true; // a strong center is a center, so only these need the full look
        for (let j = 0; j < k && alone; j++) alone = distance(x, d, j, k) > delta;
        if (alone) strong.push(k);
      }
    }
    return { renyi, strong };
  };

  /**
   * Clusters: chains of tokens at distance <= radius hang together.  They are numbered
   * by their first tokens, the leaders.
   * @param {Float64Array} x n * d numbers
   * @param {number} d
   * @param {number} radius radians
   * @returns {{labels: Int32Array, count: number}}
   */
  const clusters = (x, d, radius) => {
    const n = x.length / d;
    const labels = new Int32Array(n).fill(-1);
    const reach = radius >= Math.PI ? Infinity : (2 * Math.sin(radius / 2)) ** 2;
    const queue = new Int32Array(n);
    let count = 0;
    for (let first = 0; first < n; first++) {
      if (labels[first] >= 0) continue;
      labels[first] = count;
      queue[0] = first;
      for (let head = 0, tail = 1; head < tail; head++) {
        for (let k = first + 1; k < n; k++) {
          if (labels[k] < 0 && chord(x, d, queue[head], k) <= reach) {
            labels[k] = count;
            queue[tail++] = k;
          }
        }
      }
      count++;
    }
    return { labels, count };
  };

  /**
   * Largest geodesic distance between two tokens, in radians; 0 for fewer than two.
   * @param {Float64Array} x n * d numbers
   * @param {number} d
   * @returns {number}
   */
  const diameter = (x, d) => {
    const n = x.length / d;
    let largest = -1;
    let pair = [0, 0];
    for (let k = 1; k < n; k++) {
      for (let j = 0; j < k; j++) {
        const c = chord(x, d, j, k);
        if (c > largest) {
          largest = c;
          pair = [j, k];
        }
      }
    }
    return n > 1 ? distance(x, d, ...pair) : 0;
  };

  return {
    TOLERANCE,
    centers,
    clusters,
    createSimulation,
    diameter,
    distance,
    exp,
    field,
    fixedSteps,
    jacobian,
    random,
    randomMatrix,
    uniformTokens,
  };
})();

if (typeof module !== "undefined") module.exports = globalThis.csaDynamics;
