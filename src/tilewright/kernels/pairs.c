/* Products in bfloat16, of which a tile reads two terms at once: a pair of them in the bits of a T.
   This stands before `contraction.c`, whose words are pairs then, in a and in b.  `depth` and `deep`
   count words; sums are float32. */

#define PAIR 2
typedef unsigned short O;
typedef unsigned Word __attribute__((may_alias, aligned(2)));
typedef unsigned Words __attribute__((vector_size(VECTOR), may_alias));
#define in_all_lanes(word) ((V)(*(const Word *)&(word) - (Words){}))

/* Of a pair the second product is added first, as vdpbf16ps does it; that takes numbers smaller than
   normal ones for 0.  A product of two bfloat16 needs no rounding of its own. */
#if defined(__AVX512BF16__) && VECTOR == 64
#define add_product(sum, x, y) __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y))
#else
#define SECOND(x) ((V)((Words)(x) & 0xffff0000u))
#define FIRST(x) ((V)((Words)(x) << 16))
#define add_product(sum, x, y) ((sum) += SECOND(x) * SECOND(y), (sum) += FIRST(x) * FIRST(y))
#endif
#define multiply_add add_product

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
