/* y[n, o, h, w] = sum over c, i, j of x[n, c, h+i, w+j] * k[o, c, i, j], windows of 3 x 3: four
   outputs that make a square take 16 products in place of 36 (Winograd's F(2x2, 3x3): Lavin and
   Gray, Fast algorithms for convolutional neural networks, 2016).

       Y = A' [sum over c of (G k G') * (B' x B)] A

   Each of the 16 elements of a transformed square is a product of matrices of its own, in tiles of
   `contraction.c`, which stands before this text.  Squares are taken together as many as fit into
   the second cache; what is transformed of them never leaves it.  What does not come out finite is
   summed again as the definition says: differences of infinities are no numbers. */

#define SQUARES PANEL                                   /* of a panel */
#define MARGIN 16                                       /* after rows and planes of transformed kernels */

/* u[a][b][o][c] = (G k G')[a][b] of kernels from `o` to before `end`; rows are c + MARGIN apart, and
   so much is between planes. */
void WEIGHTS(long o, long end, long outputs, long inputs, const T *k, const long *steps, T *u) {
  const long row = inputs + MARGIN, plane = outputs * row + MARGIN;
  const T half = (T)0.5;
  long taps[9];
  for (long i = 0; i < 9; i++) taps[i] = i / 3 * steps[2] + i % 3 * steps[3];
  for (; o < end; o++)
    for (long c = 0; c < inputs; c += LANES) {
      const long some = least(LANES, inputs - c);
      const T *from = k + o * steps[0] + c * steps[1];
      T g[9][LANES] = {0};
      V t[12];
      for (long l = 0; l < some; l++, from += steps[1])
        unrolled for (long i = 0; i < 9; i++) g[i][l] = from[taps[i]];
      unrolled for (long j = 0; j < 3; j++) {
        const V first = *(const V *)g[j], middle = *(const V *)g[3 + j];
        const V last = *(const V *)g[6 + j], outer = first + last;
        t[j] = first;
        t[3 + j] = half * (outer + middle);
        t[6 + j] = half * (outer - middle);
        t[9 + j] = last;
      }
      T *to = u + o * row + c;                          /* the margin takes what is too much */
      unrolled for (long a = 0; a < 4; a++, to += 4 * plane) {
        const V outer = t[3 * a] + t[3 * a + 2];
        *(V *)to = t[3 * a];
        *(V *)(to + plane) = half * (outer + t[3 * a + 1]);
        *(V *)(to + 2 * plane) = half * (outer - t[3 * a + 1]);
        *(V *)(to + 3 * plane) = t[3 * a + 2];
      }
    }
}

/* extents: images, outputs, inputs, squares down, squares across.  Strides in elements: of x and y
   n, channel, h, w; of k o, c, i, j. */
typedef struct { long images, outputs, inputs, down, across; } Extents;

/* `count` squares of one channel from `x` on, beside each other: to 16 planes. */
static void transform(const T *x, const long *xs, long count, T *restrict to, long plane) {
  T r[4][2 * SQUARES + 2], q[4][2 * SQUARES + 2];
  const long wide = 2 * count + 2;
  for (long i = 0; i < 4; i++)
    if (xs[3] == 1) for (long w = 0; w < wide; w++) r[i][w] = x[i * xs[2] + w];
    else for (long w = 0; w < wide; w++) r[i][w] = x[i * xs[2] + w * xs[3]];
  for (long w = 0; w < wide; w++) {
    q[0][w] = r[0][w] - r[2][w];
    q[1][w] = r[1][w] + r[2][w];
    q[2][w] = r[2][w] - r[1][w];
    q[3][w] = r[1][w] - r[3][w];
  }
  for (long a = 0; a < 4; a++, to += 4 * plane)
    for (long s = 0; s < count; s++) {
      const T *d = q[a] + 2 * s;
      to[s] = d[0] - d[2];
      to[plane + s] = d[1] + d[2];
      to[2 * plane + s] = d[2] - d[1];
      to[3 * plane + s] = d[1] - d[3];
    }
}

/* The four outputs of a panel's squares from their 16 planes m; returns whether all are finite. */
static int together(const T *m, T out[4][SQUARES]) {
  T zero[SQUARES];
  for (long s = 0; s < SQUARES; s++) {
    T t[8];
    for (long b = 0; b < 4; b++) {
      const T *at = m + b * ROWS * SQUARES + s;
      const long a = 4 * ROWS * SQUARES;
      t[b] = at[0] + at[a] + at[2 * a];
      t[4 + b] = at[a] - at[2 * a] - at[3 * a];
    }
    for (long p = 0; p < 2; p++) {
      out[2 * p][s] = t[4 * p] + t[4 * p + 1] + t[4 * p + 2];
      out[2 * p + 1][s] = t[4 * p + 1] - t[4 * p + 2] - t[4 * p + 3];
    }
    zero[s] = (out[0][s] - out[0][s]) + (out[1][s] - out[1][s]) + (out[2][s] - out[2][s]) +
              (out[3][s] - out[3][s]);
  }
  int finite = 1;
  for (long s = 0; s < SQUARES; s++) finite &= zero[s] == 0;
  return finite;
}

/* One output as the definition says. */
static T defined(const Extents *e, const T *x, const long *xs, const T *k, const long *ks) {
  T sum = 0;
  for (long c = 0; c < e->inputs; c++)
    for (long i = 0; i < 3; i++)
      for (long j = 0; j < 3; j++) {
        sum += x[c * xs[1] + i * xs[2] + j * xs[3]] * k[c * ks[1] + i * ks[2] + j * ks[3]];
        in_register(sum);
      }
  return sum;
}

/* Squares from `first` to before `last`, outputs from `o` to before `end`.  u: as WEIGHTS left it.
   v: memory for `block` elements, those of a panel at least. */
void SQUARES_OF(const Extents *e, long first, long last, long o, long end, const T *x,
                const long *xs, const T *u, const T *k, const long *ks, T *y, const long *ys,
                T *restrict v, long block) {
  const long row = e->inputs + MARGIN, all = e->outputs * row + MARGIN, rows = end - o;
  const long tiles = (rows + ROWS - 1) / ROWS, most = block / (16 * e->inputs) / SQUARES;
  T m[16 * ROWS * SQUARES], out[4][SQUARES];
  while (first < last) {
    const long panels = least((last - first + SQUARES - 1) / SQUARES, most < 1 ? 1 : most);
    const long here = least(last - first, panels * SQUARES), plane = panels * e->inputs * SQUARES;
    if (here < panels * SQUARES)
      for (long i = 0; i < 16 * e->inputs; i++)         /* what is multiplied is a number */
        for (long s = here % SQUARES; s < SQUARES; s++)
          v[i / e->inputs * plane + ((panels - 1) * e->inputs + i % e->inputs) * SQUARES + s] = 0;
    for (long s = 0; s < here;) {
      const long at = first + s, across = at % e->across, line = at / e->across;
      const long count = least(least(e->across - across, here - s), SQUARES - s % SQUARES);
      const T *from = x + line / e->down * xs[0] + line % e->down * 2 * xs[2] + across * 2 * xs[3];
      T *to = v + s / SQUARES * e->inputs * SQUARES + s % SQUARES;
      for (long c = 0; c < e->inputs; c++)
        transform(from + c * xs[1], xs, count, to + c * SQUARES, plane);
      s += count;
    }
    for (long q = 0; q < tiles; q++) {
      const long top = o + rows * q / tiles, high = o + rows * (q + 1) / tiles - top;
      for (long p = 0; p < panels; p++) {
        for (long ab = 0; ab < 16; ab++) {
          const Tile to = {m + ab * ROWS * SQUARES, SQUARES, LANES};
          const T *b = v + ab * plane + p * e->inputs * SQUARES;
          const Stack one = {e->inputs, 0, row, 1, b, SQUARES, LANES, to, to, 1, 0};
          any_tiles(high, WIDE, 1, &one, u + ab * all + top * row);
        }
        for (long r = 0; r < high; r++) {
          const int finite = together(m + r * SQUARES, out);
          for (long s = p * SQUARES; s < least(here, (p + 1) * SQUARES);) {
            const long at = first + s, across = at % e->across, line = at / e->across;
            const long count = least(least(e->across - across, here - s), SQUARES - s % SQUARES);
            const long n = line / e->down, h = line % e->down * 2;
            for (long i = 0; i < 2; i++) {
              const T *left = out[2 * i] + s % SQUARES, *right = out[2 * i + 1] + s % SQUARES;
              T *to = y + n * ys[0] + (top + r) * ys[1] + (h + i) * ys[2] + 2 * across * ys[3];
              if (ys[3] == 1)
                for (long l = 0; l < count; l++) to[2 * l] = left[l], to[2 * l + 1] = right[l];
              else
                for (long l = 0; l < count; l++)
                  to[2 * l * ys[3]] = left[l], to[(2 * l + 1) * ys[3]] = right[l];
              for (long l = 0; l < 2 * count && !finite; l++)
                if (to[l * ys[3]] - to[l * ys[3]] != 0)
                  to[l * ys[3]] = defined(
                      e, x + n * xs[0] + (h + i) * xs[2] + (2 * across + l) * xs[3], xs,
                      k + (top + r) * ks[0], ks);
            }
            s += count;
          }
        }
      }
    }
    first += here;
  }
}
