/* k[o, c, i, j] = sum over n, h, w of y[n, o, h, w] * x[n, c, h+i, w+j], windows of 3 x 3: the
   gradient of the kernels of a convolution, by the transpose of Winograd's F(2x2, 3x3):

       K = G' [sum over squares of (A Y A') * (B' x B)] G

   Squares of four tangents and squares of 4 x 4 of the image are transformed, 16 products of
   matrices (`contraction.c`, which stands before this text) sum over the squares, and what comes
   out is transformed back.  What does not come out finite is summed again as the definition says. */

#define LINE 32                                         /* squares beside each other, at a time */
#define AHEAD 128                                       /* kernels that are written in turn */
#define TOGETHER 4                                      /* outputs that are transformed in turn */

/* v[a][b][square][c] = (B' x B)[a][b], squares of the lines from `first` to before `last` (an image
   has `down`); rows of v are `row` apart. */
void IMAGES(const Extents *e, long first, long last, const T *x, const long *xs, T *restrict v,
            long row) {
  static const int one[] = {0, 1, 2, 1}, two[] = {2, 2, 1, 3};
  static const T sign[] = {-1, 1, -1, -1};
  T r[4][(2 * LINE + 2) * PANEL] __attribute__((aligned(VECTOR))) = {{0}};
  const long plane = e->images * e->down * e->across * row + BETWEEN;
  int along[2 * LINE + 2], channels[PANEL];
  for (int w = 0; w < 2 * LINE + 2; w++) along[w] = w * (int)xs[3];
  for (int c = 0; c < PANEL; c++) channels[c] = c * (int)xs[1];
  for (long line = first; line < last; line++)
    for (long s = 0; s < e->across; s += LINE) {
      const long count = least(LINE, e->across - s);
      const T *from = x + line / e->down * xs[0] + line % e->down * 2 * xs[2] + s * 2 * xs[3];
      for (long c = 0; c < e->inputs; c += PANEL) {     /* channels are lanes from here on */
        for (long i = 0; i < 4; i++)
          pack(2 * count + 2, least(PANEL, e->inputs - c), from + c * xs[1] + i * xs[2], along,
               channels, r[i], PANEL);
        for (long a = 0; a < 4; a++) {
          T *to = v + a * 4 * plane + (line * e->across + s) * row + c;
          const T *p = r[one[a]], *q = r[two[a]];
          for (long l = 0; l < PANEL; l += LANES) {
#define AT(w) (*(const V *)(p + (w) * PANEL + l) + sign[a] * *(const V *)(q + (w) * PANEL + l))
            V d0 = AT(0), d1 = AT(1);
            for (long k = 0; k < count; k++) {
              const V d2 = AT(2 * k + 2), d3 = AT(2 * k + 3);
              T *at = to + k * row + l;
              *(V *)at = d0 - d2;
              *(V *)(at + plane) = d1 + d2;
              *(V *)(at + 2 * plane) = d2 - d1;
              *(V *)(at + 3 * plane) = d1 - d3;
              d0 = d2;
              d1 = d3;
            }
          }
        }
      }
    }
}

/* The 16 planes of `count` squares of one output, whose two lines are r. */
inlined void tangent(const long count, T r[2][2 * SQUARES], T *restrict to, long plane) {
  for (long a = 0; a < 4; a++, to += 4 * plane)
    for (long k = 0; k < count; k++) {
      const T one = r[0][2 * k], two = r[0][2 * k + 1], three = r[1][2 * k], four = r[1][2 * k + 1];
      const T left = a == 0 ? one : a == 1 ? one + three : a == 2 ? one - three : -three;
      const T right = a == 0 ? two : a == 1 ? two + four : a == 2 ? two - four : -four;
      to[k] = left;
      to[plane + k] = left + right;
      to[2 * plane + k] = left - right;
      to[3 * plane + k] = -right;
    }
}

/* d[a][b][o][square] = (A Y A')[a][b] of outputs from `o` to before `end`. */
void TANGENTS(const Extents *e, long o, long end, const T *y, const long *ys, T *restrict d) {
  const long squares = e->images * e->down * e->across;
  const long plane = e->outputs * squares + BETWEEN;
  const int lines[] = {0, ys[2]};
  T r[2][2 * SQUARES] = {{0}};
  Run runs[SQUARES];
  for (; o < end; o += TOGETHER)
    for (long s = 0; s < squares; s += SQUARES) {
      const long count = least(SQUARES, squares - s);
      const long many = runs_of(e, s, s + count, ys, ys, runs);
      for (long p = o; p < least(end, o + TOGETHER); p++) {
        for (const Run *run = runs; run < runs + many; run++) {
          const T *from = y + run->y + p * ys[1];
          T *there = r[0] + 2 * run->at;
          if (ys[3] == 1) copied(2, 2 * run->count, from, lines, there, 2 * SQUARES);
          else
            for (long w = 0; w < 2 * run->count; w++) {
              there[w] = from[w * ys[3]];
              there[2 * SQUARES + w] = from[ys[2] + w * ys[3]];
            }
        }
        T *to = d + p * squares + s;
        if (count == SQUARES) tangent(SQUARES, r, to, plane);
        else tangent(count, r, to, plane);
      }
    }
}

/* One element as the definition says; what is no number stays so, and a line is the last. */
static T defined(const Extents *e, const T *x, const long *xs, const T *y, const long *ys) {
  T sum = 0;
  for (long n = 0; n < e->images; n++)
    for (long h = 0; h < 2 * e->down; h++) {
      for (long w = 0; w < 2 * e->across; w++) {
        sum += x[n * xs[0] + h * xs[2] + w * xs[3]] * y[n * ys[0] + h * ys[2] + w * ys[3]];
        in_register(sum);
      }
      if (sum != sum) return sum;
    }
  return sum;
}

/* k = G' m G of outputs from `o` to before `end`; m[a][b][o][c] are the sums, in rows of c that are
   `row` apart. */
void KERNELS(const Extents *e, long o, long end, const T *x, const long *xs, const T *y,
             const long *ys, const T *m, long row, T *k, const long *ks) {
  const long plane = e->outputs * row + BETWEEN;
  const T half = (T)0.5;
  long taps[9], dense = 1;
  int lanes[LANES], kinds[9], places[AHEAD];
  T near[AHEAD][16] __attribute__((aligned(VECTOR)));
  for (int ij = 0; ij < 9; ij++) taps[ij] = ij / 3 * ks[2] + ij % 3 * ks[3];
  for (int ij = 0; ij < 9; ij++) dense &= taps[ij] == ij, kinds[ij] = ij * LANES;
  for (int l = 0; l < LANES; l++) lanes[l] = l;
  for (int l = 0; l < AHEAD; l++) places[l] = l * 16;
  for (; o < end; o++)
    for (long c = 0, some; c < e->inputs; c += some) {
      T *to = k + o * ks[0] + c * ks[1];
      V zero = {};
      some = least(AHEAD, e->inputs - c);
      for (long l = 0; l < some; l += LANES) {
        const T *at = m + o * row + c + l;
        V t[12], out[9];
        unrolled for (long b = 0; b < 4; b++, at += plane) {
          const V one = *(const V *)(at + 4 * plane), two = *(const V *)(at + 8 * plane);
          t[b] = *(const V *)at + half * (one + two);
          t[4 + b] = half * (one - two);
          t[8 + b] = *(const V *)(at + 12 * plane) + half * (one + two);
        }
        unrolled for (long i = 0; i < 3; i++) {
          const V *r = t + 4 * i, sum = half * (r[1] + r[2]);
          out[3 * i] = r[0] + sum;
          out[3 * i + 1] = half * (r[1] - r[2]);
          out[3 * i + 2] = r[3] + sum;
          unrolled for (long j = 3 * i; j < 3 * i + 3; j++) zero += out[j] - out[j];
        }
        pack(LANES, 9, (const T *)out, lanes, kinds, near[l], 16);
      }
      if (dense) copied(some, 9, near[0], places, to, ks[1]);
      else
        for (long l = 0; l < some; l++)
          unrolled for (long ij = 0; ij < 9; ij++) to[l * ks[1] + taps[ij]] = near[l][ij];
      int finite = 1;
      for (long l = 0; l < LANES; l++) finite &= zero[l] == 0;
      for (long l = 0; l < some && !finite; l++)
        for (long ij = 0; ij < 9; ij++)
          if (near[l][ij] - near[l][ij] != 0)
            to[l * ks[1] + taps[ij]] =
                defined(e, x + (c + l) * xs[1] + ij / 3 * xs[2] + ij % 3 * xs[3], xs,
                        y + o * ys[1], ys);
    }
}
