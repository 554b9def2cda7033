/* What a tile reads as one term, a word, of operands that are made of O: one of them, or of bfloat16
   (PAIR is 2) a pair in the bits of a T, whose sums are float32.  This stands before the tiles. */

#if PAIR == 1
typedef T O;
#define in_all_lanes(word) ((word) - (V){})     /* x - 0 is x, -0 too */
#define PARTS 1                 /* of words that are multiplied one after the other */
#define part(p, words) (words)
#define number(x) (x)
inlined void store(O *to, V x) { *(V *)to = x; }

#else
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
/* As many as there are; `mask` is ~0, or 0xffff where the second of each pair is to be 0. */
inlined void match_rows(long n, const O *first, const O *second, unsigned mask, T *to) {
  if (n >= 16) match16(n, first, second, mask, to);
  else if (n >= 8) match8(n, first, second, mask, to);
  else if (n >= 4) match4(n, first, second, mask, to);
  else match1(n, first, second, mask, to);
}

/* x in bfloat16, to nearest even, in the upper halves of words; a NaN stays one. */
typedef O Half __attribute__((vector_size(VECTOR / 2), aligned(2), may_alias));
inlined Words rounded(V x) {
  const Words bits = (Words)x, nan = (Words)(x != x);
  return (bits + 0x7fffu + (bits >> 16 & 1u)) & ~nan | (nan & 0x7fc00000u);
}
inlined void store(O *to, V x) { *(Half *)to = __builtin_convertvector(rounded(x) >> 16, Half); }
inlined T number(O x) { return (union { unsigned bits; T number; }){(unsigned)x << 16}.number; }

/* Two vectors, rounded: one after the other, and as words of an element of each. */
inlined V in_halves(V first, V second) {
#if PARTS == 1
  V y;
  __asm__("vcvtne2ps2bf16 %1, %2, %0" : "=v"(y) : "v"(first), "v"(second));
  return y;
#else
  union { O halves[2 * LANES]; V whole; } y;
  store(y.halves, first);
  store(y.halves + LANES, second);
  return y.whole;
#endif
}
inlined V in_words(V first, V second) {
#if PARTS == 1 && MATCHED
  const Halves order = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23,
                        8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return (V)__builtin_shuffle((Halves)in_halves(first, second), order);
#else
  return (V)(rounded(first) >> 16 | (rounded(second) & 0xffff0000u));
#endif
}
#endif

#ifndef add_product             /* a sum and a product, rounded once */
#define add_product(sum, x, y) ((sum) += (x) * (y))
#endif
