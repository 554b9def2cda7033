/* y[n, o, h, w] = sum over c, i, j of x[n, c, h+i, w+j] * k[o, c, i, j], windows of 3 x 3: four
   outputs that make a square take 16 products in place of 36 (Winograd's F(2x2, 3x3): Lavin and
   Gray, Fast algorithms for convolutional neural networks, 2016).

       Y = A' [sum over c of (G k G') * (B' x B)] A

   Each of the 16 elements of a transformed square is a product of matrices of its own, in tiles of
   `contraction.c`, which stands before this text and `squares.c`.  Squares are lanes of the image and of the result,
   outputs those of kernels.  Squares are taken together as many as fit into the second cache; what
   is transformed of them never leaves it.  What does not come out finite is summed again as the
   definition says: differences of infinities are no numbers. */

#define NEAR 8                                          /* channels whose lines are copied in turn */
#define SOME 16                                         /* inputs whose kernels are read in turn */
#define MARGIN 16                                       /* after planes of what is transformed */

/* Tile q of `tiles` begins with this output. */
inlined long tile_top(long q, long tiles, long outputs) { return outputs * q / tiles; }

/* Where u has the planes of tile q: they are `inputs` times its outputs, and a margin. */
inlined long tile_at(long q, long top, long inputs) { return 16 * (inputs * top + MARGIN * q); }

/* u[tile][a][b][c][o] = (G k G')[a][b], outputs by the tiles of rows that read them, of the tiles
   from `part` to before `end` of `parts`.  Outputs are lanes: a vector that is stored has more than
   a tile; the next takes their place, the last one's are the margin's. */
void WEIGHTS(long part, long end, long parts, long outputs, long inputs, const T *k,
             const long *steps, T *restrict u) {
  const long tiles = (outputs + ROWS - 1) / ROWS;
  const T half = (T)0.5;
  T near[SOME * 16 * LANES] __attribute__((aligned(VECTOR))) = {0};
  long taps[9], at[9], lowest = 0, found = 0;
  int terms[SOME * 16], columns[ROWS];
  for (long i = 0; i < 9; i++) taps[i] = i / 3 * steps[2] + i % 3 * steps[3];
  for (long i = 0; i < 9; i++) lowest = least(lowest, taps[i]);
  for (long i = 0; i < 9; i++)
    if (taps[i] - lowest < 9) found |= 1L << (taps[i] - lowest);
  /* Nine taps that lie together, in whatever order, are read as vectors, with some of what follows
     them; but not the last in memory. */
  const int dense = found == 511;
  const int more = dense && steps[1] > 9 && steps[0] >= 9;
  const long apart = more ? 16 : 9;
  for (long i = 0; i < 9; i++) at[i] = (dense ? taps[i] - lowest : i) * LANES;
  for (long t = 0; t < SOME * apart; t++)
    terms[t] = t / apart * steps[1] + (dense ? lowest + t % apart : taps[t % apart]);
  for (long r = 0; r < ROWS; r++) columns[r] = r * steps[0];
  for (long q = tiles * part / parts; q < tiles * end / parts; q++) {
    const long top = tile_top(q, tiles, outputs), high = tile_top(q + 1, tiles, outputs) - top;
    const long plane = inputs * high + MARGIN, whole = inputs - (more && q == tiles - 1);
    T *to = u + tile_at(q, top, inputs);
    for (long c = 0, some; c < inputs; c += some) {
      some = c < whole ? least(SOME, whole - c) : 1;
      pack(c < whole ? some * apart : 9, high, k + top * steps[0] + c * steps[1], terms, columns,
           near, LANES);
      for (long l = 0; l < some; l++, to += high) {
        const T *g = near + l * apart * LANES;
        V t[12];
        unrolled for (long j = 0; j < 3; j++) {
          const V first = *(const V *)(g + at[j]), middle = *(const V *)(g + at[3 + j]);
          const V last = *(const V *)(g + at[6 + j]), outer = first + last;
          t[j] = first;
          t[3 + j] = half * (outer + middle);
          t[6 + j] = half * (outer - middle);
          t[9 + j] = last;
        }
        T *row = to;
        unrolled for (long a = 0; a < 4; a++, row += 4 * plane) {
          const V outer = t[3 * a] + t[3 * a + 2];
          *(V *)row = t[3 * a];
          *(V *)(row + plane) = half * (outer + t[3 * a + 1]);
          *(V *)(row + 2 * plane) = half * (outer - t[3 * a + 1]);
          *(V *)(row + 3 * plane) = t[3 * a + 2];
        }
      }
    }
  }
}

/* A panel of squares of one channel to 16 planes.  x: the four lines of their first two columns,
   `row` apart, and `apart` from these those of the last two. */
static void transform(const T *x, long row, long apart, T *restrict to, long plane) {
  T q[4][2 * SQUARES], r[4][2 * SQUARES];
  const T *y = x + apart;
  for (long w = 0; w < 2 * SQUARES; w++) {
    q[0][w] = x[w] - x[2 * row + w];
    q[1][w] = x[row + w] + x[2 * row + w];
    q[2][w] = x[2 * row + w] - x[row + w];
    q[3][w] = x[row + w] - x[3 * row + w];
  }
  for (long w = 0; w < 2 * SQUARES; w++) {
    r[0][w] = y[w] - y[2 * row + w];
    r[1][w] = y[row + w] + y[2 * row + w];
    r[2][w] = y[2 * row + w] - y[row + w];
    r[3][w] = y[row + w] - y[3 * row + w];
  }
  for (long a = 0; a < 4; a++, to += 4 * plane)
    for (long s = 0; s < SQUARES; s++) {
      const T *d = q[a] + 2 * s, *g = r[a] + 2 * s;
      to[s] = d[0] - g[0];
      to[plane + s] = d[1] + g[0];
      to[2 * plane + s] = g[0] - d[1];
      to[3 * plane + s] = d[1] - g[1];
    }
}

/* A panel of squares, `many` runs, of all channels.  Lines that do not lie together as they are are
   copied so; squares behind the last are zeros: what is multiplied is a number. */
static void transformed(const Extents *e, const Run *runs, long many, const T *x, const long *xs,
                        T *restrict to, long plane) {
  T near[NEAR * 8 * 2 * SQUARES] __attribute__((aligned(VECTOR)));
  int rows[NEAR * 8];
  const long last = runs[many - 1].at + runs[many - 1].count;
  if (many == 1 && last == SQUARES && xs[3] == 1) {
    for (long c = 0; c < e->inputs; c++)
      transform(x + runs[0].x + c * xs[1], xs[2], 2, to + c * SQUARES, plane);
    return;
  }
  for (long t = 0; t < NEAR * 8; t++)
    rows[t] = t / 8 * xs[1] + t / 2 % 4 * xs[2] + t % 2 * 2 * xs[3];
  if (last < SQUARES) __builtin_memset(near, 0, sizeof near);
  for (long c = 0; c < e->inputs; c += NEAR) {
    const long some = least(NEAR, e->inputs - c);
    for (const Run *run = runs; run < runs + many; run++) {
      const T *from = x + run->x + c * xs[1];
      T *there = near + 2 * run->at;
      if (xs[3] == 1) copied(some * 8, 2 * run->count, from, rows, there, 2 * SQUARES);
      else
        for (long t = 0; t < some * 8; t++)
          for (long w = 0; w < 2 * run->count; w++)
            there[t * 2 * SQUARES + w] = from[rows[t] + w * xs[3]];
    }
    for (long k = 0; k < some; k++)
      transform(near + k * 16 * SQUARES, 4 * SQUARES, 2 * SQUARES, to + (c + k) * SQUARES, plane);
  }
}

/* The two lines of outputs of a panel's squares from their 16 planes m; returns whether all are
   finite. */
static int together(const T *m, T out[2][2 * SQUARES]) {
  T zero[SQUARES];
  for (long s = 0; s < SQUARES; s++) {
    T t[8];
    for (long b = 0; b < 4; b++) {
      const T *at = m + b * ROWS * SQUARES + s;
      const long a = 4 * ROWS * SQUARES;
      t[b] = at[0] + at[a] + at[2 * a];
      t[4 + b] = at[a] - at[2 * a] - at[3 * a];
    }
    zero[s] = 0;
    for (long p = 0; p < 2; p++) {
      const T left = t[4 * p] + t[4 * p + 1] + t[4 * p + 2];
      const T right = t[4 * p + 1] - t[4 * p + 2] - t[4 * p + 3];
      out[p][2 * s] = left;
      out[p][2 * s + 1] = right;
      zero[s] += (left - left) + (right - right);
    }
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

/* Squares from `first` to before `last`, tiles of outputs from `part` to before `end` of `parts`.
   u: as WEIGHTS left it, or 0: then each tile's kernels are transformed here.  v: memory for `block`
   elements, those of a panel at least, and behind them, if u is 0, for a tile's kernels. */
void SQUARES_OF(const Extents *e, long first, long last, long part, long end, long parts,
                const T *x, const long *xs, const T *u, const T *k, const long *ks, T *y,
                const long *ys, T *restrict v, long block) {
  static const int lines[] = {0, 2 * SQUARES};
  const long tiles = (e->outputs + ROWS - 1) / ROWS, panel = e->inputs * SQUARES;
  const long most = (block / 16 - MARGIN) / panel;
  T m[16 * ROWS * SQUARES], out[2][2 * SQUARES];
  Run runs[SQUARES];
  Coming nothing = {0};
  while (first < last) {
    const long panels = least((last - first + SQUARES - 1) / SQUARES, most < 1 ? 1 : most);
    const long here = least(last, first + panels * SQUARES), plane = panels * panel + MARGIN;
    for (long p = 0, s = first; p < panels; p++, s += SQUARES) {
      const long many = runs_of(e, s, least(here, s + SQUARES), xs, ys, runs);
      transformed(e, runs, many, x, xs, v + p * panel, plane);
    }
    for (long q = tiles * part / parts; q < tiles * end / parts; q++) {
      const long top = tile_top(q, tiles, e->outputs);
      const long high = tile_top(q + 1, tiles, e->outputs) - top;
      const long before = tile_at(q, top, e->inputs);
      if (!u) WEIGHTS(q, q + 1, tiles, e->outputs, e->inputs, k, ks, v + block - before);
      const T *a = u ? u + before : v + block;
      for (long p = 0, s = first; p < panels; p++, s += SQUARES) {
        for (long ab = 0; ab < 16; ab++) {
          const Tile to = {m + ab * ROWS * SQUARES, SQUARES, LANES};
          const T *b = v + ab * plane + p * panel;
          const Stack one = {e->inputs, 0, 1, high, b, SQUARES, LANES, to, to, 1, 0, 1, &nothing};
          any_tiles(high, WIDE, 1, &one, a + ab * (e->inputs * high + MARGIN));
        }
        const long many = runs_of(e, s, least(here, s + SQUARES), xs, ys, runs);
        for (long r = top; r < top + high; r++) {
          const int finite = together(m + (r - top) * SQUARES, out);
          for (const Run *run = runs; run < runs + many; run++) {
            const T *from = out[0] + 2 * run->at;
            T *to = y + run->y + r * ys[1];
            if (ys[3] == 1) copied(2, 2 * run->count, from, lines, to, ys[2]);
            else
              for (long i = 0; i < 2; i++)
                for (long w = 0; w < 2 * run->count; w++)
                  to[i * ys[2] + w * ys[3]] = from[lines[i] + w];
            for (long l = 0; l < 4 * run->count && !finite; l++) {
              const long i = l % 2, w = l / 2;
              if (from[lines[i] + w] - from[lines[i] + w] != 0)
                to[i * ys[2] + w * ys[3]] =
                    defined(e, x + run->x + i * xs[2] + w * xs[3], xs, k + r * ks[0], ks);
            }
          }
        }
      }
    }
    first = here;
  }
}
