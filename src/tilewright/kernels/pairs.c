/* Products in bfloat16, of which a tile reads two terms at once: a pair of them in the bits of a T.
   This stands before `contraction.c`, whose words are pairs then, in a and in b.  `depth` and `deep`
   count words; sums are float32. */

#define PAIR 2
typedef unsigned short O;
typedef unsigned Word __attribute__((may_alias, aligned(2)));
typedef unsigned Words __attribute__((vector_size(VECTOR), may_alias));
typedef O Halves __attribute__((vector_size(VECTOR), aligned(2), may_alias));
#define in_all_lanes(word) ((V)(*(const Word *)&(word) - (Words){}))

/* Of a pair the second product is added first, as vdpbf16ps does it; that takes numbers smaller than
   normal ones for 0.  A product of two bfloat16 needs no rounding of its own.  `part`: the words that
   hold the terms of either, as float32. */
#if defined(__AVX512BF16__) && VECTOR == 64
#define PARTS 1
#define part(p, words) (words)
#define add_product(sum, x, y) __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y))
#define multiply_add add_product
#else
#define PARTS 2
inlined V part(const int p, V words) {
  if (p == 0) return (V)((Words)words & 0xffff0000u);
  return (V)((Words)words << 16);
}
#endif

/* Words of columns that lie together, of terms that lie in two rows.  Registers are filled by 16 bytes
   of columns in turn, and `in_order` puts their sums side by side. */
#ifndef __clang__
#define MATCHED 1
#if VECTOR == 64
#define LOWER {0, 32, 1, 33, 2, 34, 3, 35, 8, 40, 9, 41, 10, 42, 11, 43, 16, 48, 17, 49, 18, 50, \
               19, 51, 24, 56, 25, 57, 26, 58, 27, 59}
#define LEFT {0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23}
#define ACROSS 8
#elif VECTOR == 32
#define LOWER {0, 16, 1, 17, 2, 18, 3, 19, 8, 24, 9, 25, 10, 26, 11, 27}
#define LEFT {0, 1, 2, 3, 8, 9, 10, 11}
#define ACROSS 4
#else
#define LOWER {0, 8, 1, 9, 2, 10, 3, 11}
#define LEFT {0, 1, 2, 3}
#define ACROSS 4
#endif
inlined void match(const O *first, const O *second, V *words) {
  const Halves lower = LOWER, one = *(const Halves *)first, two = *(const Halves *)second;
  words[0] = (V)__builtin_shuffle(one, two, lower);
  words[1] = (V)__builtin_shuffle(one, two, lower + 4);
}
inlined void in_order(V *sums) {
  const Words left = LEFT;
  const V one = sums[0], two = sums[1];
  sums[0] = __builtin_shuffle(one, two, left);
  sums[1] = __builtin_shuffle(one, two, left + ACROSS);
}
#endif

/* Where pairs of an operand's terms begin.  Returns whether the two of each lie together; a last one
   of an odd number has no second. */
static int in_pairs(long terms, const int *xt, int *pairs) {
  int found = 1;
  for (long t = 0; t < terms; t += 2) {
    pairs[t / 2] = xt[t];
    found &= t + 1 == terms || xt[t + 1] == xt[t] + 1;
  }
  return found;
}

/* to[j] = first[j] and second[j] of a pair for j < n, so many at a time: not more than there are. */
#define MATCH(N)                                                                                  \
  typedef O Halves##N __attribute__((vector_size(2 * N), aligned(2), may_alias));                 \
  typedef unsigned Words##N __attribute__((vector_size(4 * N), aligned(4), may_alias));           \
  inlined void match##N(long n, const O *first, const O *second, unsigned mask, T *to) {          \
    for (long j = 0; j < n; j = j + N < n && n < j + 2 * N ? n - N : j + N) {                     \
      const Words##N one = __builtin_convertvector(*(const Halves##N *)(first + j), Words##N);    \
      const Words##N two = __builtin_convertvector(*(const Halves##N *)(second + j), Words##N);   \
      *(Words##N *)(to + j) = (one | two << 16) & mask;                                           \
    }                                                                                             \
  }
MATCH(1) MATCH(4) MATCH(8) MATCH(16)

static void pack(long depth, long n, const O *x, const int *xt, const int *xj, T *restrict p,
                 long step);

/* As `pack`, of terms that may lie anywhere; beside the last of an odd number is 0. */
static void pack_terms(long terms, long n, const O *x, const int *xt, const int *xj, T *restrict p,
                       long step) {
  int pairs[terms / 2 + 1];
  const long whole = in_pairs(terms, xt, pairs) ? terms / 2 * 2 : 0;
  if (whole) pack(whole / 2, n, x, pairs, xj, p, step);
  int row = 1;
  for (long j = 1; j < n; j++) row &= xj[j] == xj[j - 1] + 1;
  for (long t = whole; t < terms; t += 2) {
    const O *first = x + xt[t], *second = x + xt[t + (t + 1 < terms)];
    const unsigned mask = t + 1 < terms ? ~0u : 0xffffu;
    T *to = p + t / 2 * step;
    if (row && n >= 16) match16(n, first + *xj, second + *xj, mask, to);
    else if (row && n >= 8) match8(n, first + *xj, second + *xj, mask, to);
    else if (row && n >= 4) match4(n, first + *xj, second + *xj, mask, to);
    else for (long j = 0; j < n; j++) match1(1, first + xj[j], second + xj[j], mask, to + j);
  }
}
