/* Squares of 2 x 2 places of an image, which Winograd's algorithm takes together, by the panel: across
   a line, then down, image after image.  `contraction.c` stands before this text. */

#define SQUARES PANEL                                   /* of a panel */

/* extents: images, outputs, inputs, squares down, squares across.  Strides in elements: of x and y
   n, channel, h, w; of k o, c, i, j. */
typedef struct { long images, outputs, inputs, down, across; } Extents;

/* Squares of a panel that lie beside each other: `count` from the square `at` on, and how far their
   first elements are from the beginning of x and of y. */
typedef struct { long x, y; int at, count; } Run;

/* Squares from `first` to before `last`, a panel's, as runs; returns how many. */
static long runs_of(const Extents *e, long first, long last, const long *xs, const long *ys,
                    Run *runs) {
  long many = 0;
  for (long s = first; s < last; many++) {
    const long across = s % e->across, line = s / e->across, n = line / e->down;
    const long count = least(e->across - across, last - s), h = line % e->down * 2;
    runs[many] = (Run){n * xs[0] + h * xs[2] + across * 2 * xs[3],
                       n * ys[0] + h * ys[2] + across * 2 * ys[3], s - first, count};
    s += count;
  }
  return many;
}

/* p[t * step + j] = x[xt[t] + j] for j < n, an even number. */
inlined void copied(long depth, long n, const T *x, const int *xt, T *restrict p, long step) {
  const long size = n * sizeof(T);
  if (size >= 64) copy64(depth, n, x, xt, p, step);
  else if (size >= 32) copy32(depth, n, x, xt, p, step);
  else if (size >= 16) copy16(depth, n, x, xt, p, step);
  else copy8(depth, n, x, xt, p, step);
}
