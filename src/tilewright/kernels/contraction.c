/* c[i, j] = scale * sum over t of a[i, t] * b[t, j].  Rows i, columns j and terms t may each run
   through several loops, with strides of any kind: where an element lies is a sum of what its loops
   add, so that a few offsets serve a whole block.  Convolutions are such products.

   A tile of ROWS x WIDE vectors of c is summed in registers: each step over t loads WIDE vectors of
   b and multiplies them by ROWS elements of a (Goto and van de Geijn, Anatomy of high-performance
   matrix multiplication, 2008).  The sum over t goes in steps, so that a panel of b stays in the
   first cache, or in the second where a tile has many rows; in each element the order of the terms
   is that of t, whatever the tiles.
   Operands that memory does not hold as the tile reads them are packed first, on the stack: a
   megabyte of b and a quarter of a.

   What follows the product element by element takes the sums block by block, while they are in the
   first cache, and they need not go to memory themselves. */

#define DEPTH 512               /* at most, as what follows; a product says what it takes */
#define COLUMNS (64 * PANEL)    /* of b that are packed at a time */
#define GROUP 32                /* tiles of rows of a that are packed at a time */
#define PASSING 8               /* panels that are, where one group is all that reads them */
#define ABREAST 4               /* panels whose sums something that follows takes at a time */
#define PACKED_B ((1 << 20) / (long)sizeof(T))
#define PACKED_A ((1 << 18) / (long)sizeof(T))
#define CHUNK 32                /* steps that tiles of a are packed for in turn if they share lines */
#define FAR 512                 /* rows of a further apart fall on the same sets of the cache */
#define SPREAD 128              /* so do the rows of b that a panel reads, which are more */
#define PAGE (4096 / (long)sizeof(T))
#define WAYS 8                  /* lines that a set of the first cache holds, at least */
/* Tiles below each other that read such rows where they lie: in less time than packing takes.  Rows of
   a that lie `along` the terms leave more of the caches to b. */
#define FEW(step, along) (VECTOR == 64 ? (step <= PAGE ? 4 : 2) : along && step <= 2 * SPREAD ? 12 : 2)
#define LOOPS 16                /* of rows, columns or terms, at most */
#define FEW_ROWS (VECTOR == 64 ? 4 : 3) /* that take many columns at a time: */
#define SLIM (VECTOR == 32 && PAIR == 1 ? 4 : 0)        /* rows at most of a tile that is wider: */
#define THREE 3                 /* vectors */
/* How tiles ask for memory that follows: not at all, in turns, or at once.  Where vectors are shorter
   they lose by it.  Elsewhere lines that come from far, all at once, hold up those of a and b on AMD's
   processors, and on Intel's the turns take longer than what they hide.  With FEW_TERMS at most asking
   takes longer than it hides, unless c is LARGE. */
#define NEVER 0
#define IN_TURNS 1
#define AT_ONCE 2
#if defined(__znver3__) || defined(__znver4__) || defined(__znver5__)
#define ASKS (VECTOR == 64 ? IN_TURNS : NEVER)
#define FEW_TERMS 32
#define LARGE ((8 << 20) / (long)sizeof(T))
#define READING 8               /* panels at most that read terms where they lie, in rows far apart */
#else
#define ASKS (VECTOR == 64 ? AT_ONCE : NEVER)
#define FEW_TERMS 64
#define LARGE ((16 << 20) / (long)sizeof(T))
#define READING 2               /* as far as is known */
#endif
#define NARROW 4                /* tiles of rows that are taken at a time then: they touch few pages of c */
#define TURNS 8                 /* of a tile's loop, at least, between askings for more memory */
#define IN_A_ROW 256            /* terms at most that are added one after the other: each rounds the sum */
#define MANY 16                 /* so many vectors of sums, as many as give long runs of b */
#define LINE 64                 /* bytes of one, in the caches */
#define BETWEEN (LINE / (long)sizeof(T))        /* rows of a that are copied: a line */

/* `depth` and `deep` count words (`pairs.c`). */
#ifndef MATCHED
#define MATCHED 0               /* whether tiles make words of two rows of b where they lie */
#define match(first, second, words) ((void)(first), (void)(second))
#define in_order(sums) ((void)0)
#endif
/* Words as operands lie: they may begin at any element. */
typedef T Near __attribute__((aligned(sizeof(O)), may_alias));
typedef T Row __attribute__((vector_size(VECTOR), aligned(sizeof(O)), may_alias));

/* Whether the vectors of a tile lie side by side in b: where they are shorter than a line of cache.
   Longer ones may lie in lines that are `apart`, as slices of a line's columns have them. */
#define BESIDE (PANEL * sizeof(T) <= 64)

/* `add_product` as one instruction: GCC makes others of the operators too, which leave sums in other
   registers, and moves that bring them back. */
#ifndef multiply_add
#if defined(__x86_64__) && defined(__FMA__) && !defined(__clang__)
#define MULTIPLY_ADD(KIND, sum, x, y)                                                             \
  __asm__("vfmadd231" KIND " %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y))
#if SINGLE
#define multiply_add(...) MULTIPLY_ADD("ps", __VA_ARGS__)
#else
#define multiply_add(...) MULTIPLY_ADD("pd", __VA_ARGS__)
#endif
#else
#define multiply_add add_product
#endif
#endif

/* Ask the second cache for what is packed next. */
inlined void ask(Coming *coming) {
  for (long k = least(coming->each, coming->lines); k > 0; k--) {
    __builtin_prefetch((const char *)coming->at, 0, 2);
    coming->at += LINE;
    coming->lines--;
    if (--coming->left) continue;
    coming->at += coming->skip;
    coming->left = coming->run;
  }
}

/* The words of b that a tile meets in a step over the terms. */
inlined void read_words(const int wide, const int matched, const T *b, long bj, long bt, V *words) {
  if (matched) match((const O *)b, (const O *)b + bt, words);
  else unrolled for (int j = 0; j < wide; j++) words[j] = *(const Row *)(b + j * bj);
}

/* One tile; rows and kind are known where it is called: how many vectors are beside each other, or
   WIDE + 1 where these are matched.  Two terms a turn: with more, GCC moves sums between registers.
   What a tile ASKS for is the memory of its sums; if in turns, also what is packed next, as the terms go
   on, a row at a time, or more where terms are few. */
inlined void tile(const int rows, const int kind, const Stack *stack, const T *a, T *c, T *to) {
  const int wide = least(kind, WIDE), matched = kind > WIDE;
  const long ai = stack->ai, at = stack->at, bt = stack->bt, depth = stack->depth;
  const long bj = BESIDE ? LANES : stack->apart;
  const T *b = stack->b, scale = stack->scale;
  Tile here = stack->c;
  V sum[ROWS][WIDE];
  unrolled for (int i = 0; i < rows; i++) unrolled for (int j = 0; j < wide; j++)
    sum[i][j] = (V){};
  V first[ROWS][WIDE];          /* sums of the first half of many terms */
  const long half = depth > IN_A_ROW ? depth / 4 : 0;
  const T *asked = c;
  const int in_turns = ASKS == IN_TURNS && stack->asks;
  long stretch = in_turns ? depth / 2 / rows + 1 : depth / 2, each = 1, asking = in_turns ? rows : 0;
  for (; in_turns && stretch < TURNS; stretch *= 2) each *= 2;
  if (ASKS == AT_ONCE && stack->asks)
    unrolled for (int i = 0; i < rows; i++) unrolled for (int j = 0; j < wide; j++)
      __builtin_prefetch(c + i * here.row + j * here.vector, 1);
  for (long rest = depth / 2, some; rest > 0; rest -= some) {
    for (long i = least(each, asking); i > 0; i--, asking--, asked += here.row) {
      unrolled for (int j = 0; j < wide; j++) __builtin_prefetch(asked + j * here.vector, 1);
      ask(stack->coming);
    }
    some = least(rest > half ? rest - half : rest, stretch);
    for (long turns = some; turns > 0; turns--) unrolled for (int s = 0; s < 2; s++) {
      V words[WIDE];
      read_words(wide, matched, b, bj, bt, words);
      unrolled for (int p = 0; p < PARTS; p++) {
        V right[WIDE];
        unrolled for (int j = 0; j < wide; j++) right[j] = part(p, words[j]);
        unrolled for (int j = 0; j < wide; j++) in_register(right[j]);
        unrolled for (int i = 0; i < rows; i++) {
          const V left = part(p, in_all_lanes(a[i * ai]));
          if (wide == 1) add_product(sum[i][0], left, right[0]);  /* its instruction reads left, too */
          else unrolled for (int j = 0; j < wide; j++) multiply_add(sum[i][j], left, right[j]);
        }
        if (rows * wide == 1) in_register(sum[0][0]);
      }
      a += at;
      b += bt;
    }
    if (half && rest - some == half)
      unrolled for (int i = 0; i < rows; i++) unrolled for (int j = 0; j < wide; j++) {
        first[i][j] = sum[i][j];
        sum[i][j] = (V){};
      }
  }
  if (depth % 2) {
    V words[WIDE];
    read_words(wide, matched, b, bj, bt, words);
    unrolled for (int p = 0; p < PARTS; p++) unrolled for (int i = 0; i < rows; i++) {
      const V left = part(p, in_all_lanes(a[i * ai]));
      unrolled for (int j = 0; j < wide; j++) add_product(sum[i][j], left, part(p, words[j]));
    }
  }
  if (half) unrolled for (int i = 0; i < rows; i++) unrolled for (int j = 0; j < wide; j++)
    sum[i][j] += first[i][j];
  if (matched) unrolled for (int i = 0; i < rows; i++) in_order(sum[i]);
  if (stack->more) unrolled for (int i = 0; i < rows; i++) unrolled for (int j = 0; j < wide; j++)
    sum[i][j] += *(const V *)(c + i * here.row + j * here.vector);
  if (scale != 1) unrolled for (int i = 0; i < rows; i++) unrolled for (int j = 0; j < wide; j++)
    sum[i][j] *= scale;
  here = stack->to;
  unrolled for (int i = 0; i < rows; i++) unrolled for (int j = 0; j < wide; j++)
    *(V *)(to + i * here.row + j * here.vector) = sum[i][j];
}

#ifdef __SANITIZE_ADDRESS__
#define SHAPE(rows, kind, ...) tile(rows, kind, __VA_ARGS__)    /* compiles in a tenth of the time */
#else
/* Each shape is a function of its own, which has all registers to itself: where tiles of a stack
   follow each other in one function, GCC keeps sums in memory. */
#define DEFINE(R, KIND)                                                                           \
  static __attribute__((noinline)) void tile_##R##_##KIND(const Stack *stack, const T *a, T *c,   \
                                                          T *to) {                                \
    if (R <= ROWS) tile(R, KIND, stack, a, c, to);                                                \
  }
#define EACH(MACRO)                                                                               \
  MACRO(1) MACRO(2) MACRO(3) MACRO(4) MACRO(5) MACRO(6) MACRO(7)                                  \
  MACRO(8) MACRO(9) MACRO(10) MACRO(11) MACRO(12) MACRO(13) MACRO(14)
#if MATCHED
#define KINDS(R) DEFINE(R, 1) DEFINE(R, 2) DEFINE(R, 3)
#define NAMES(R) {tile_##R##_1, tile_##R##_2, tile_##R##_3},
#else
#define KINDS(R) DEFINE(R, 1) DEFINE(R, 2)
#define NAMES(R) {tile_##R##_1, tile_##R##_2},
#endif
EACH(KINDS)
static void (*const shapes[][WIDE + MATCHED])(const Stack *, const T *, T *, T *) = {EACH(NAMES)};
#define SHAPE(rows, kind, ...) shapes[rows - 1][kind - 1](__VA_ARGS__)
#endif

void any_tiles(long rows, long kind, long count, const Stack *stack, const T *a) {
  const Tile c = stack->c, to = stack->to;
  for (long q = 0; q < count; q++)
    SHAPE(rows, kind, stack, a + q * stack->below, c.at + q * rows * c.row,
          to.at + q * rows * to.row);
}

/* A few rows of MANY vectors of sums, which lie side by side in b and c: with two vectors at a time, b
   would be read in runs of a line or two. */
inlined void broad(const int rows, const Stack *stack, const T *a) {
  const int wide = MANY / rows / WIDE * WIDE;
  const T *b = stack->b;
  const long half = stack->depth > IN_A_ROW ? stack->depth / 2 : 0;
  V sum[FEW_ROWS][MANY], first[FEW_ROWS][MANY];
  unrolled for (int i = 0; i < rows; i++) unrolled for (int j = 0; j < wide; j++) sum[i][j] = (V){};
  for (long rest = stack->depth; rest > 0; rest = rest > half ? half : 0) {
    for (long t = rest > half ? rest - half : rest; t > 0; t--, a += stack->at, b += stack->bt)
      unrolled for (int j = 0; j < wide; j++) unrolled for (int p = 0; p < PARTS; p++) {
        const V right = part(p, *(const Row *)(b + j * LANES));
        unrolled for (int i = 0; i < rows; i++) {
          const V left = part(p, in_all_lanes(a[i * stack->ai]));
          multiply_add(sum[i][j], left, right);
        }
      }
    if (rest > half && half)
      unrolled for (int i = 0; i < rows; i++) unrolled for (int j = 0; j < wide; j++) {
        first[i][j] = sum[i][j];
        sum[i][j] = (V){};
      }
  }
  if (half) unrolled for (int i = 0; i < rows; i++) unrolled for (int j = 0; j < wide; j++)
    sum[i][j] += first[i][j];
  unrolled for (int i = 0; i < rows; i++) unrolled for (int j = 0; j < wide; j++) {
    if (stack->more) sum[i][j] += *(const V *)(stack->c.at + i * stack->c.row + j * LANES);
    if (stack->scale != 1) sum[i][j] *= stack->scale;
    *(V *)(stack->to.at + i * stack->to.row + j * LANES) = sum[i][j];
  }
}

static __attribute__((noinline)) void broad_tile(long rows, const Stack *stack, const T *a) {
  if (rows == 1) broad(1, stack, a);
  else if (rows == 2) broad(2, stack, a);
  else if (rows == 3) broad(3, stack, a);
  else if (FEW_ROWS == 4) broad(4, stack, a);
}

#if SLIM
/* Rows of THREE vectors of sums, where registers hold twelve of them: of two vectors, sums of few rows
   are under way too seldom for the time that a product takes.  from, over: where each vector has its
   words, and how far it is from the first in c. */
inlined void slim(const int rows, const Stack *stack, const T *a, T *c, const T *const *from,
                  const long *over) {
  const long ai = stack->ai, at = stack->at, bt = stack->bt;
  const T *first = from[0], *second = from[1], *third = from[2], scale = stack->scale;
  V sum[SLIM][THREE];
  unrolled for (int i = 0; i < rows; i++) unrolled for (int j = 0; j < THREE; j++) sum[i][j] = (V){};
  for (long t = stack->depth; t > 0; t--, a += at, first += bt, second += bt, third += bt) {
    V right[THREE] = {*(const Row *)first, *(const Row *)second, *(const Row *)third};
    unrolled for (int j = 0; j < THREE; j++) in_register(right[j]);
    unrolled for (int i = 0; i < rows; i++) {
      const V left = in_all_lanes(a[i * ai]);
      unrolled for (int j = 0; j < THREE; j++) multiply_add(sum[i][j], left, right[j]);
    }
  }
  unrolled for (int i = 0; i < rows; i++) unrolled for (int j = 0; j < THREE; j++) {
    V *to = (V *)(c + i * stack->c.row + over[j]);
    if (stack->more) sum[i][j] += *to;
    if (scale != 1) sum[i][j] *= scale;
    *to = sum[i][j];
  }
}

/* `count` tiles of so many rows below each other, THREE panels wide: each is WIDE tiles of THREE. */
static __attribute__((noinline)) void slim_tiles(long rows, long count, const Stack *stack, const T *a,
                                                 const T *const *from, const long *over) {
  for (long j = 0; j < WIDE * THREE; j += THREE, from += THREE, over += THREE)
    for (long q = 0; q < count; q++) {
      const T *x = a + q * stack->below;
      T *c = stack->c.at + q * rows * stack->c.row;
      if (rows == 1) slim(1, stack, x, c, from, over);
      else if (rows == 2) slim(2, stack, x, c, from, over);
      else if (rows == 3) slim(3, stack, x, c, from, over);
      else slim(4, stack, x, c, from, over);
    }
}
#else
#define slim_tiles(...) ((void)0)
#endif

/* How many steps some loops have: `walk` says how they are given. */
inlined long steps_of(const long *loops) {
  long steps = 1;
  for (long k = 0; k < loops[0]; k++) steps *= loops[3 * k + 1];
  return steps;
}

/* Where `count` steps through some loops lie in two operands, from step `from` on.  loops: how many
   there are, then the extent of each and its strides in the two, outermost first.  Returns whether
   the innermost makes them all. */
static int walk(const long *loops, long from, long count, int *one, int *two) {
  const long n = loops[0], *last = loops + 3 * n - 2;
  long at[LOOPS], x = 0, y = 0;
  for (long k = n, rest = from; k-- > 0;) {
    const long *loop = loops + 3 * k + 1;
    at[k] = rest;
    if (k) at[k] = rest % loop[0], rest /= loop[0];
    x += at[k] * loop[1];
    y += at[k] * loop[2];
  }
  const int all = last[0] - at[n - 1] >= count;
  for (long i = 0; i < count;) {
    const long run = least(count - i, last[0] - at[n - 1]);
    const int first = x, second = y, step = last[1], other = last[2];
    for (long k = 0; k < run; k++) one[i + k] = first + (int)k * step;
    for (long k = 0; k < run; k++) two[i + k] = second + (int)k * other;
    i += run;
    if (i == count) break;
    x -= at[n - 1] * last[1];
    y -= at[n - 1] * last[2];
    at[n - 1] = 0;
    for (long k = n - 1; k-- > 0;) {                    /* carry */
      const long *loop = loops + 3 * k + 1, turn = ++at[k] == loop[0] ? 1 - loop[0] : 1;
      x += turn * loop[1];
      y += turn * loop[2];
      if (turn == 1) break;
      at[k] = 0;
    }
  }
  return all;
}

/* Whether n offsets lie `step` apart. */
static int even(const int *x, long n, long step) {
  int found = 1;
  for (long k = 1; k < n; k++) found &= x[k] - x[k - 1] == step;
  return found;
}

/* Whether n columns of c are vectors whose elements lie together. */
static int in_vectors(const int *cj, long n) {
  int found = 1;
  for (long k = 0; k < n && found; k += LANES) found = even(cj + k, LANES, 1);
  return found;
}

/* Whether as many panels as a slim tile takes are packed, all or none. */
inlined int alike(const int *direct) { return direct[0] == direct[1] && direct[1] == direct[2]; }

#if VECTOR >= 32 && SINGLE && !defined(__clang__)
typedef int Lanes __attribute__((vector_size(VECTOR)));
#define SQUARES_TURN            /* which few rows, and what is packed, count on */
/* Every other element of two vectors, the first or the second of each pair; OTHERS: where the second
   vector begins at the last of the first.  Halves of a vector are mended after. */
#if VECTOR == 64
#define EVENS {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30}
#define OTHERS {0, 2, 4, 6, 8, 10, 12, 14, 17, 19, 21, 23, 25, 27, 29, 31}
#define MENDED {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
#else
#define EVENS {0, 2, 8, 10, 4, 6, 12, 14}
#define OTHERS {0, 2, 9, 11, 4, 6, 13, 15}
#define MENDED {0, 1, 4, 5, 2, 3, 6, 7}
#endif
#define EACH_OTHER(low, high, which) __builtin_shuffle(__builtin_shuffle(low, high, which), mended)

/* LANES words that lie `step` apart, one or two, in one run or in two of which the second lies
   behind, as in images whose windows are so far apart. */
typedef struct { int step, first, second; Lanes in_first; } Picked;

/* Says how words at these offsets lie; returns whether they lie so. */
inlined int picks(const int *at, Picked *p) {
  const int step = at[1] - at[0] == PAIR ? 1 : 2, apart = step * PAIR, first = at[0];
  const int second = at[LANES - 1] - apart * (int)(LANES - 1);
  int fits = second >= first;
  for (int j = 0; j < LANES; j++) {
    p->in_first[j] = -(at[j] == first + apart * j);
    fits &= p->in_first[j] | (at[j] == second + apart * j);
  }
  p->step = step, p->first = first, p->second = second;
  return fits;
}

#define LOADED(from) (*(const Row *)(from))

/* Such words of x; step and runs are known where it is called.  Nothing is read but what lies
   between the first word and the last. */
inlined V picked(const int step, const int runs, const O *x, const Picked *p) {
  const Lanes others = OTHERS, mended = MENDED;
  const O *from = x + p->first, *behind = x + p->second;
#define FROM(y) (step == 1 ? LOADED(y) : EACH_OTHER(LOADED(y), LOADED((y) + (LANES - 1) * PAIR), others))
  const V one = FROM(from);
  if (runs == 1) return one;
  return (V)(((Lanes)one & p->in_first) | ((Lanes)FROM(behind) & ~p->in_first));
}

/* p[t * step + j] = x[xt[t] + xj[j]] for j < LANES where these columns lie two apart, in a run or
   two.  Returns whether they do. */
static int pack_others(long depth, const O *x, const int *xt, const int *xj, T *restrict p,
                       long step) {
  const Lanes evens = EVENS, odds = evens + 1, mended = MENDED;
  Picked of;
  if (!picks(xj, &of) || of.step == 1) return 0;
  if (of.first != of.second) {
    for (long t = 0; t < depth; t++) *(V *)(p + t * step) = picked(2, 2, x + xt[t], &of);
    return 1;
  }
  for (long t = 0; t < depth; t++) {
    const O *from = x + xt[t];
    if (t + 1 < depth && xt[t + 1] == xt[t] + PAIR) {      /* what lies between are the next term's */
      const V low = LOADED(from + of.first), high = LOADED(from + of.first + LANES * PAIR);
      *(V *)(p + t * step) = EACH_OTHER(low, high, evens);
      *(V *)(p + ++t * step) = EACH_OTHER(low, high, odds);
    } else
      *(V *)(p + t * step) = picked(2, 1, from, &of);
  }
  return 1;
}
#endif

void pack(long depth, long n, const O *x, const int *xt, const int *xj, T *restrict p, long step) {
  int start[PANEL + 1] = {0};                           /* of columns that lie together */
  const int row = even(xj, n, PAIR);
  long runs = 1;
  for (long j = 1; j < n && !row && runs * 4 <= n; j++)
    if (xj[j] != xj[j - 1] + PAIR) start[runs++] = j;
  start[runs] = n;
  if (row || runs * 4 <= n) {
    for (long r = 0; r < runs; r++) {
      const long j = start[r], count = start[r + 1] - j, size = count * sizeof(T);
      const O *from = x + xj[j];
      if (count == PANEL && sizeof(T[PANEL]) >= 64) copy64(depth, PANEL, from, xt, p + j, step);
      else if (size >= 64) copy64(depth, count, from, xt, p + j, step);
      else if (size >= 32) copy32(depth, count, from, xt, p + j, step);
      else if (size >= 16) copy16(depth, count, from, xt, p + j, step);
      else if (size >= 8) copy8(depth, count, from, xt, p + j, step);
      else copy4(depth, count, from, xt, p + j, step);
    }
    return;
  }
  /* Columns by the vector, so that a line of x is read to its end while the first cache has it: the
     lines of columns that are a page apart share eight places. */
#ifdef SQUARES_TURN
  const int along = even(xt, depth, PAIR);
#endif
  for (long j = 0; j < n; j += LANES) {
#ifdef SQUARES_TURN
    if (n - j >= LANES && pack_others(depth, x, xt, xj + j, p + j, step)) continue;
#endif
    for (long t = 0; t < depth;) {
      const long have = least(n - j, LANES);
#ifdef SQUARES_TURN
      Picked of = {1, xt[t], xt[t], {}};
      if (t + LANES <= depth && (along || picks(xt + t, &of))) {   /* a square, in registers */
        V r[LANES];
#define LINES(step, runs)                            \
  unrolled for (int i = 0; i < LANES; i++)           \
    r[i] = i < have ? picked(step, runs, x + xj[j + i], &of) : (V){};
        const int runs = of.first == of.second ? 1 : 2;
        if (of.step == 1 && runs == 1) { LINES(1, 1) }
        else if (of.step == 1) { LINES(1, 2) }
        else if (runs == 1) { LINES(2, 1) }
        else { LINES(2, 2) }
        turn(r);
        unrolled for (int i = 0; i < LANES; i++) *(V *)(p + (t + i) * step + j) = r[i];
        t += LANES;
        continue;
      }
#endif
      for (const long stop = least(depth, t + 16); t < stop; t++)
        for (long i = j; i < j + have; i++) p[t * step + i] = *(const Near *)(x + xt[t] + xj[i]);
    }
  }
}

#if PAIR == 1
#define in_pairs(terms, xt, pairs) 1
#define pack_terms pack
#else
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
    if (row) match_rows(n, first + *xj, second + *xj, mask, to);
    else for (long j = 0; j < n; j++) match1(1, first + xj[j], second + xj[j], mask, to + j);
  }
}
#endif

/* Columns from left to right of b, laid as tiles read them: slices of a line's columns, one after the
   other, of all terms. */
void LAY(const long *across, const long *along, long left, long right, const O *b, T *p) {
  int bj[BETWEEN], bt[DEPTH * PAIR], none[DEPTH * PAIR];
  const long length = steps_of(along);
  for (long j = left; j < right; j += BETWEEN) {
    walk(across, j, BETWEEN, bj, none);
    for (long t = 0; t < length; t += DEPTH * PAIR) {
      const long terms = least(length - t, DEPTH * PAIR);
      walk(along, t, terms, bt, none);
      pack_terms(terms, BETWEEN, b, bt, bj, p + (j * length + t * BETWEEN) / PAIR, BETWEEN);
    }
  }
}

/* Panels of columns that lie together, a row of them after the other: memory is read in its order.
   p holds a panel after the other. */
static __attribute__((noinline)) void pack_rows(long depth, long panels, const O *x, const int *xt,
                                                T *restrict p) {
  for (long t = 0; t < depth; t++) {
    const Row *from = (const Row *)(x + xt[t]);
    V *to = (V *)(p + t * PANEL);
    for (long k = 0; k < panels; k++, from += WIDE, to += WIDE * depth)
      unrolled for (int j = 0; j < WIDE; j++) to[j] = from[j];
  }
}

/* How many rows come before tile q: the first tiles are one row `taller` than `height`. */
inlined long before(long q, long height, long taller) { return q * height + least(q, taller); }

/* What is packed next, while tiles ask so many `times`: `outer` times `inner` elements from x on, which
   lie together, `apart` elements from each other. */
inlined Coming coming_from(const O *x, long inner, long outer, long apart, long times) {
  const long run = inner * (long)sizeof(O) / LINE + 1, lines = run * outer;
  return (Coming){(long)x, lines, (lines + times - 1) / times, run, run,
                  apart * (long)sizeof(O) - run * LINE};
}

/* Rows of a tile, at most: of rows of a that are read where they lie, and which all fall on one set of the
   first cache, no more than are held there until the next terms of a line. */
inlined long most_rows(const long *down, const long *along, long columns) {
  const long next_a = down[3 * down[0] - 1], step_a = along[3 * along[0] - 1];
  const int one_set = next_a && next_a * (long)sizeof(O) % (PAGE * (long)sizeof(T)) == 0;
  return one_set && step_a == 1 && columns <= READING * PANEL ? least(ROWS, WAYS - 1) : ROWS;
}

/* Takes the sums of rows from top to bottom and columns from left to right, a row every `step`. */
typedef void Then(const void *with, const T *sums, long step, long top, long bottom, long left,
                  long right);

/* Computes a block of few rows if that is faster so (`few_rows.c`, which stands after this text); returns
   whether it did. */
static int few_rows(const long *down, const long *across, const long *along, long top, long bottom,
                    long left, long right, const O *a, const O *b, T *c, T scale, Then *then,
                    const void *with);

/* Computes a block in squares of sums if the processor can (`amx_blocks.c`, after that); returns whether
   it did. */
static int squares_of(const long *down, const long *across, const long *along, long top, long bottom,
                      long left, long right, const O *a, const O *b, T *c, T scale, Then *then,
                      const void *with);

/* Rows from top to bottom, columns from left to right of a product whose loops are `down`, `across`
   and, of the terms, `along`; their strides are those in (a, c), (b, c) and (a, b).  At a time,
   `deep` words of terms are summed, and so many panels of b and tiles of a are packed, as far as
   there is room.  then: 0, or what takes the sums, with `with`, once they have all their terms; c
   keeps them until they do, and may be 0 where `deep` words are all there are. */
static __attribute__((noinline)) void in_tiles(const long *down, const long *across, const long *along,
                                               long top, long bottom, long left, long right, const O *a,
                                               const O *b, T *c, T scale, long deep, long most_panels,
                                               long most_tiles, Then *then, const void *with) {
  T packed_b[PACKED_B + LANES] __attribute__((aligned(VECTOR)));
  T packed_a[PACKED_A] __attribute__((aligned(VECTOR)));
  T block[GROUP * ROWS * ABREAST * PANEL] __attribute__((aligned(VECTOR)));
  int ai[GROUP * ROWS], ci[GROUP * ROWS], bj[COLUMNS], cj[COLUMNS];
  int at[DEPTH * PAIR], bt[DEPTH * PAIR], pairs[PAIR == 1 ? 1 : DEPTH];
  const int *const bw = PAIR == 1 ? bt : pairs;         /* where words of b are */
  const long rows = bottom - top, highest = most_rows(down, along, right - left);
  const long tiles = (rows + highest - 1) / highest;
  const long height = rows / tiles, taller = rows % tiles;
  const long length = steps_of(along);
  const long all = (length + PAIR - 1) / PAIR;
  deep = least(deep, DEPTH);
  /* Rows of a that are copied do not fall on the same sets; a packed tile needs no more than they. */
  const long kept = deep + BETWEEN, heap = highest * kept;
  const long most = least(least(most_tiles, GROUP), PACKED_A / heap);
  const int alone = tiles <= most;
  const int brief = ASKS != NEVER && all <= FEW_TERMS && steps_of(down) * steps_of(across) <= LARGE;
  const long group_tiles = brief && !alone ? least(most, NARROW) : most;
  /* Nothing is packed of b that lies as tiles read it, however many panels are taken at a time. */
  const int in_place = SLIM && along[0] == 1 && along[3] < SPREAD && across[3 * across[0] - 1] == 1;
  const long together = least(most_panels, alone && !in_place ? PASSING : COLUMNS / PANEL);
  const long columns = least(together, PACKED_B / (PANEL * deep));
  const long panels = (right - left + PANEL - 1) / PANEL;
  const long turns = (panels + columns - 1) / columns, steps = (all + deep - 1) / deep;
  /* A lone group of rows is packed once for all columns, before it goes on to the next terms. */
  for (long round = 0; round < turns * steps; round++) {
    const long turn = alone ? round % turns : round / steps;
    const long t = deep * (alone ? round / turns : round % steps);
    const long n = left + panels * turn / turns * PANEL;
    const long some = least(right, left + panels * (turn + 1) / turns * PANEL) - n;
    const int in_row = walk(across, n, some, bj, cj);
    const long next_b = across[3 * across[0] - 1];
    const int near_b = in_row && next_b == PAIR;
    const int near_c = in_row && across[3 * across[0]] == 1;
    const long depth = least(all - t, deep), terms = least(length - t * PAIR, deep * PAIR);
    /* Once all terms are summed: a sum and then a product are never rounded as one. */
    const int last = t + depth == all, taken = last && then;
    const T factor = last ? scale : 1;
    const int equal = walk(along, t * PAIR, terms, at, bt), full = terms % PAIR == 0;
    const int paired = in_pairs(terms, bt, pairs) && full;
    const long step_a = terms > 1 ? at[1] - at[0] : 1;
    const int steady = equal || even(at, terms, step_a);
    /* Memory holds rows of b as tiles want them, or terms that they match; but where many tiles read
       rows that are far apart. */
    const long next_t = terms > 1 ? bt[1] - bt[0] : 1, next_w = depth > 1 ? bw[1] - bw[0] : PAIR;
    const int matched = MATCHED && !paired && full && in_row && next_b == 1 &&
                        (equal || even(bt, terms, next_t));
    const int words = paired && next_w % PAIR == 0 && (equal || even(bw, depth, next_w));
    const long step_b = matched ? next_t : next_w / PAIR;       /* from a word to the next */
    const long spread = __builtin_labs(step_b) / (matched ? PAIR : 1);
    const int dense = (rows <= FEW(spread, step_a == 1) * ROWS || spread < SPREAD) && (matched || words);
    const long beside = near_b && paired && !dense ? some / PANEL * PANEL : 0;
    if (beside) pack_rows(depth, beside / PANEL, b + bj[0], bw, packed_b);
    int direct[COLUMNS / PANEL];                        /* panels of b that are not packed */
    for (long j = 0; j < some; j += PANEL) {
      const long have = least(some - j, PANEL), width = (have + LANES - 1) / LANES * LANES;
      int vectors = have == width;
      for (long k = j; k < j + width && vectors && !near_b; k += BESIDE ? width : LANES)
        vectors = even(bj + k, BESIDE ? width : LANES, PAIR);
      direct[j / PANEL] =
          dense && (matched ? have == PANEL
                            : vectors && (width == LANES || (bj[j + LANES] - bj[j]) % PAIR == 0));
      if (!direct[j / PANEL] && j >= beside)
        pack_terms(terms, have, b, bt, bj + j, packed_b + j * depth, width);
    }
    for (long group = 0; group < tiles; group += group_tiles) {
      const long end = least(group + group_tiles, tiles), above = before(group, height, taller);
      const long first = top + above, count = before(end, height, taller) - above;
      const int equal = walk(down, first, count, ai, ci);
      const long next_a = count > 1 ? ai[1] - ai[0] : 1, next_c = count > 1 ? ci[1] - ci[0] : 1;
      const int in_step = equal || even(ci, count, next_c);
      /* A tile reads few of a column's elements at a time, and comes back for the others: it does so
         for each panel.  Of rows that lie along the terms it reads whole lines. */
      const long jump = step_a == 1 ? next_a : 2 * step_a;
      const int far = __builtin_labs(jump) >= FAR * PAIR;
      const long meeting = alone ? right - left : some;
      const int steps_a = steady && (equal || even(ai, count, next_a));
      const int in_words = PAIR == 1 || (step_a == 1 && full && next_a % PAIR == 0);
      const int again = meeting > (step_a == 1 ? READING : 2) * PANEL;
      const int turned = !steps_a || !in_words || (far && again);
      const int copied = turned && steady && step_a == 1;     /* rows as they lie, nearer */
      const int packed = turned && !copied, held = alone && turn > 0;
      for (long i = 0; copied && !held && i < count; i++) {
        O *to = (O *)(packed_a + i * kept);
        __builtin_memcpy(to, a + at[0] + ai[i], terms * sizeof(O));
        if (!full) to[terms] = 0;
      }
      const long chunk = step_a == 1 ? deep : CHUNK;
      for (long s = 0; packed && !held && s < depth; s += chunk)
        for (long q = group; q < end; q++) {
          const long i = before(q, height, taller) - above, high = height + (q < taller);
          T *to = packed_a + (q - group) * heap + s * high;
          const long count = least(terms - s * PAIR, chunk * PAIR);
          pack_terms(count, high, a, at + s * PAIR, ai + i, to, high);
        }
      /* Next are the rows below, or those from the top with the terms that follow. */
      const int ends = end == tiles, stay = alone && turn + 1 < turns;
      Coming coming = {0};
      if (ASKS == IN_TURNS && turned && steps_a && !stay && !(ends && last)) {
        const long start = ends ? 0 : end, stop = least(start + group_tiles, tiles);
        const long below = before(stop, height, taller) - before(start, height, taller);
        const long times = (some + PANEL - 1) / PANEL * (end - group) * height;
        const O *next = a + ai[0] + at[0] + (ends ? terms * step_a - above * next_a : count * next_a);
        coming = step_a == 1 ? coming_from(next, terms, below, next_a, times)
                             : coming_from(next, below, terms, step_a, times);
      }
      const int are_few = rows <= FEW_ROWS && dense && near_b && near_c && in_step && c && !taken;
      const long breadth = are_few ? MANY / rows / WIDE * PANEL : PANEL;
      /* Rows of b that are far apart fall on the same sets, and tiles would come back for their lines. */
      const int are_slim = height + (taller > 0) <= SLIM && depth <= IN_A_ROW && in_step && c && !taken &&
                           (!dense || spread < SPREAD);
      for (long j = 0, have; j < some; j += have) {
        const int is_broad = are_few && some - j >= breadth;
        const int is_slim = are_slim && !is_broad && some - j >= THREE * PANEL && alike(direct + j / PANEL) &&
                            (near_c || in_vectors(cj + j, THREE * PANEL));
        have = is_broad ? breadth : is_slim ? THREE * PANEL : least(some - j, PANEL);
        const long width = (have + LANES - 1) / LANES * LANES;
        const T *y = direct[j / PANEL] ? (const T *)(b + bt[0] + bj[j]) : packed_b + j * depth;
        const long step = direct[j / PANEL] ? step_b : is_slim ? PANEL : width;
        const T *from[WIDE * THREE];            /* if it is slim */
        long over[WIDE * THREE];
        for (long k = 0; is_slim && k < WIDE * THREE; k++) {
          const long panel = k / WIDE * PANEL, rest = k % WIDE * LANES;
          from[k] = (direct[j / PANEL] ? y + (bj[j + panel] - bj[j]) / PAIR : y + panel * depth) + rest;
          over[k] = cj[j + panel + rest] - cj[j];
        }
        const long apart =
            direct[j / PANEL] && width > LANES ? (bj[j + LANES] - bj[j]) / PAIR : LANES;
        const long next = width > LANES ? cj[j + LANES] - cj[j] : LANES;
        const int whole = in_step && have == width && (near_c || is_slim || in_vectors(cj + j, width));
        for (long q = group, stop; q < end; q = stop) {
          const long i = before(q, height, taller) - above, high = height + (q < taller);
          stop = q < taller ? least(taller, end) : end;
          const T *x = copied   ? packed_a + i * kept
                       : packed ? packed_a + (q - group) * heap
                                : (const T *)(a + ai[i] + at[0]);
          const long row_a = copied ? kept : packed ? 1 : next_a / PAIR;
          T *sums = block + (i * ABREAST + j / PANEL % ABREAST) * PANEL;
          const Tile own = {sums, ABREAST * PANEL, LANES};
          const Tile there = whole && c ? (Tile){c + ci[i] + cj[j], next_c, next} : own;
          const Stack stack = {depth, packed ? heap : high * row_a, row_a, packed ? high : step_a,
                               y, step, apart, there, taken ? own : there, whole ? factor : 1,
                               whole && t, !brief, &coming};
          const long kind = matched && direct[j / PANEL] ? WIDE + 1 : width / LANES;
          if (is_broad) broad_tile(high, &stack, x);
          else if (is_slim) slim_tiles(high, stop - q, &stack, x, from, over);
          else any_tiles(high, kind, stop - q, &stack, x);
          if (!whole && (t || factor != 1 || !taken))
            for (long r = 0; r < high * (stop - q); r++) {
              T *sum = sums + r * ABREAST * PANEL, *row = c ? c + ci[i + r] : 0;
              if (near_c && !t && !taken)
                for (long s = 0; s < have; s++) row[cj[j] + s] = sum[s] * factor;
              else
                for (long s = 0; s < have; s++) {
                  T *to = row + cj[j + s];
                  *(taken ? sum + s : to) = (t ? *to + sum[s] : sum[s]) * factor;
                }
            }
        }
        const long waiting = j % (ABREAST * PANEL);   /* columns before these that were kept */
        if (taken && (waiting == (ABREAST - 1) * PANEL || j + PANEL >= some))
          then(with, block, ABREAST * PANEL, first, first + count, n + j - waiting, n + j + have);
      }
    }
  }
}

/* Each way has its arrays on the stack of its own. */
void NAME(const long *down, const long *across, const long *along, long top, long bottom, long left,
          long right, const O *a, const O *b, T *c, T scale, long deep, long most_panels,
          long most_tiles, Then *then, const void *with) {
  if (bottom <= top || right <= left) return;
  if (few_rows(down, across, along, top, bottom, left, right, a, b, c, scale, then, with)) return;
  if (squares_of(down, across, along, top, bottom, left, right, a, b, c, scale, then, with)) return;
  in_tiles(down, across, along, top, bottom, left, right, a, b, c, scale, deep, most_panels, most_tiles,
           then, with);
}
