/* k[o, c, i, j] = sum over n, h, w of y[n, o, h, w] * x[n, c, h+i, w+j], windows of 3 x 3: the
   gradient of the kernels of a convolution, by the transpose of Winograd's F(2x2, 3x3):

       K = G' [sum over squares of (A Y A') * (B' x B)] G

   Squares of four tangents and squares of 4 x 4 of the image are transformed, 16 products of
   matrices (`contraction.c`, which stands before this text) sum over the squares, and what comes
   out is transformed back.  What does not come out finite is summed again as the definition says. */

#define LINE 32                                         /* squares beside each other, at a time */

/* extents: images, outputs, inputs, squares down, squares across.  Strides in elements: of x and y
   n, channel, h, w; of k o, c, i, j. */
typedef struct { long images, outputs, inputs, down, across; } Extents;

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

/* d[a][b][o][square] = (A Y A')[a][b] of outputs from `o` to before `end`. */
void TANGENTS(const Extents *e, long o, long end, const T *y, const long *ys, T *restrict d) {
  const long squares = e->images * e->down * e->across;
  const long plane = e->outputs * squares + BETWEEN;
  T r[2][2 * LINE], t[4][2 * LINE];
  for (; o < end; o++)
    for (long line = 0; line < e->images * e->down; line++)
      for (long s = 0; s < e->across; s += LINE) {
        const long count = least(LINE, e->across - s);
        const T *from = y + line / e->down * ys[0] + o * ys[1] + line % e->down * 2 * ys[2] +
                        s * 2 * ys[3];
        for (long i = 0; i < 2; i++)
          if (ys[3] == 1) for (long w = 0; w < 2 * count; w++) r[i][w] = from[i * ys[2] + w];
          else for (long w = 0; w < 2 * count; w++) r[i][w] = from[i * ys[2] + w * ys[3]];
        for (long w = 0; w < 2 * count; w++) {
          t[0][w] = r[0][w];
          t[1][w] = r[0][w] + r[1][w];
          t[2][w] = r[0][w] - r[1][w];
          t[3][w] = -r[1][w];
        }
        T *to = d + o * squares + line * e->across + s;
        for (long a = 0; a < 4; a++, to += 4 * plane)
          for (long k = 0; k < count; k++) {
            const T left = t[a][2 * k], right = t[a][2 * k + 1];
            to[k] = left;
            to[plane + k] = left + right;
            to[2 * plane + k] = left - right;
            to[3 * plane + k] = -right;
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
  long taps[9];
  for (long ij = 0; ij < 9; ij++) taps[ij] = ij / 3 * ks[2] + ij % 3 * ks[3];
  for (; o < end; o++)
    for (long c = 0; c < e->inputs; c += LANES) {
      const long some = least(LANES, e->inputs - c);
      const T *at = m + o * row + c, half = (T)0.5;
      V t[12], zero = {};
      T out[9][LANES];
      unrolled for (long b = 0; b < 4; b++, at += plane) {
        const V one = *(const V *)(at + 4 * plane), two = *(const V *)(at + 8 * plane);
        t[b] = *(const V *)at + half * (one + two);
        t[4 + b] = half * (one - two);
        t[8 + b] = *(const V *)(at + 12 * plane) + half * (one + two);
      }
      unrolled for (long i = 0; i < 3; i++) {
        const V *r = t + 4 * i, sum = half * (r[1] + r[2]);
        const V made[3] = {r[0] + sum, half * (r[1] - r[2]), r[3] + sum};
        unrolled for (long j = 0; j < 3; j++) {
          *(V *)out[3 * i + j] = made[j];
          zero += made[j] - made[j];
        }
      }
      for (long l = 0; l < some; l++) {
        T *to = k + o * ks[0] + (c + l) * ks[1];
        unrolled for (long ij = 0; ij < 9; ij++) to[taps[ij]] = out[ij][l];
        for (long ij = 0; ij < 9 && zero[l] != 0; ij++)
          if (out[ij][l] - out[ij][l] != 0)
            to[taps[ij]] =
                defined(e, x + (c + l) * xs[1] + ij / 3 * xs[2] + ij % 3 * xs[3], xs,
                        y + o * ys[1], ys);
      }
    }
}
