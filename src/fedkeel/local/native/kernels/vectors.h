// Vectors of the processor, by the extensions that GCC and Clang share: one source for every instruction set.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#define FK_INLINE static inline __attribute__((always_inline))
#define FK_UNROLL _Pragma("GCC unroll 32")
// Between two groups of instructions: numbers are loaded again rather than kept, so that registers hold sums.
#define FK_APART asm volatile("" ::: "memory")

namespace fedkeel {

#if defined(__AVX512F__)
constexpr int BYTES = 64, REGISTERS = 32;
#elif defined(__AVX__)
constexpr int BYTES = 32, REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int BYTES = 16, REGISTERS = 32;
#else
constexpr int BYTES = 16, REGISTERS = 16;
#endif
// How many vectors of sums an inner loop keeps in registers; the rest is for what it multiplies.
constexpr int SUMS = REGISTERS == 32 ? 24 : 12;

template <class T> struct Types;
template <> struct Types<float> {
  typedef float V __attribute__((vector_size(BYTES)));
  typedef float Anywhere __attribute__((vector_size(BYTES), aligned(4), may_alias));
  typedef int32_t I __attribute__((vector_size(BYTES)));
};
template <> struct Types<double> {
  typedef double V __attribute__((vector_size(BYTES)));
  typedef double Anywhere __attribute__((vector_size(BYTES), aligned(8), may_alias));
  typedef int64_t I __attribute__((vector_size(BYTES)));
};

template <class T> struct Vectors {
  typedef typename Types<T>::V V;                // L numbers
  typedef typename Types<T>::Anywhere Anywhere;  // the same at any address
  typedef typename Types<T>::I I;                // what comparing two V gives: -1 where it holds, else 0
  static constexpr int L = BYTES / sizeof(T);

  FK_INLINE V all(T number) { return number - V{}; }
  FK_INLINE V load(const T* from) { return *(const Anywhere*)from; }
  FK_INLINE void store(T* to, V v) { *(Anywhere*)to = v; }
  // The same for the first n lanes; the others are zero, or not stored.
  FK_INLINE V load(const T* from, int n) {
    V v = {};
    for (int l = 0; l < n; l++) v[l] = from[l];
    return v;
  }
  FK_INLINE void store(T* to, V v, int n) {
    for (int l = 0; l < n; l++) to[l] = v[l];
  }

  // -1 in the first n lanes, 0 in the others.
  FK_INLINE I first(int n) {
    I real = {};
    for (int l = 0; l < n; l++) real[l] = -1;
    return real;
  }

  // a's lanes where the bit D of a lane's number is not set, b's first ones elsewhere; `high`: the other halves.
  template <int D, size_t... i> FK_INLINE V low_of(V a, V b, std::index_sequence<i...>) {
    return __builtin_shufflevector(a, b, (int(i) & D ? int(i) - D + L : int(i))...);
  }
  template <int D, size_t... i> FK_INLINE V high_of(V a, V b, std::index_sequence<i...>) {
    return __builtin_shufflevector(a, b, (int(i) & D ? int(i) + L : int(i) + D)...);
  }
  template <int D> FK_INLINE V low(V a, V b) { return low_of<D>(a, b, std::make_index_sequence<L>{}); }
  template <int D> FK_INLINE V high(V a, V b) { return high_of<D>(a, b, std::make_index_sequence<L>{}); }

  // Row r, lane l becomes row l, lane r.
  template <int D = L / 2> FK_INLINE void transpose(V (&a)[L]) {
    FK_UNROLL for (int r = 0; r < L; r++)
      if (!(r & D)) {
        V one = a[r], two = a[r + D];
        a[r] = low<D>(one, two);
        a[r + D] = high<D>(one, two);
      }
    if constexpr (D > 1) transpose<D / 2>(a);
  }
  // Lane l of the result is the sum of a[l].
  template <int D = L / 2> FK_INLINE V sums(V (&a)[L]) {
    FK_UNROLL for (int r = 0; r < D; r++) a[r] = low<D>(a[r], a[r + D]) + high<D>(a[r], a[r + D]);
    if constexpr (D > 1) return sums<D / 2>(a);
    return a[0];
  }
  FK_INLINE T sum(V v) {
    V a[L] = {v};
    return sums(a)[0];
  }

  // to[i] has the numbers i of L rows side by side, for n of them. Where n is no multiple of L, the last L overlap.
  static void side_by_side(const T* const* rows, int n, V* to) {
    for (int ii = 0; ii < n && n >= L; ii += L) {
      const int i = std::min(ii, n - L);
      V a[L];
      FK_UNROLL for (int r = 0; r < L; r++) a[r] = load(rows[r] + i);
      transpose(a);
      FK_UNROLL for (int r = 0; r < L; r++) to[i + r] = a[r];
    }
    for (int i = 0; i < n && n < L; i++)
      for (int r = 0; r < L; r++) to[i][r] = rows[r][i];
  }
  // The way back: row r, at to + r * stride, has lane r of n vectors.
  static void apart(const V* from, int n, T* to, long stride) {
    for (int ii = 0; ii < n && n >= L; ii += L) {
      const int i = std::min(ii, n - L);
      V a[L];
      FK_UNROLL for (int r = 0; r < L; r++) a[r] = from[i + r];
      transpose(a);
      FK_UNROLL for (int r = 0; r < L; r++) store(to + r * stride + i, a[r]);
    }
    for (int i = 0; i < n && n < L; i++)
      for (int r = 0; r < L; r++) to[r * stride + i] = from[i][r];
  }

  // e^x for x <= 0, which is all that a softmax needs; 0 where a float cannot hold it. Not a number stays that.
  FK_INLINE V exponential(V x) {
    if constexpr (sizeof(T) == 8) {
      for (int l = 0; l < L; l++) x[l] = std::exp(x[l]);
      return x;
    } else {  // Cephes: 2^n by the exponent's bits, the rest by a polynomial
      const V least = all(T(-87.3)), magic = all(T(12582912));  // 1.5 * 2^23: adding it rounds to a whole number
      const V y = x < least ? least : x;
      const V shifted = y * T(1.44269504088896341) + magic, n = shifted - magic;
      const V f = y - n * T(0.693359375) - n * T(-2.12194440e-4);
      V p = f * T(1.9875691500e-4) + T(1.3981999507e-3);
      p = p * f + T(8.3334519073e-3);
      p = p * f + T(4.1665795894e-2);
      p = p * f + T(1.6666665459e-1);
      p = p * f + T(5.0000001201e-1);
      p = p * f * f + f + T(1);
      const I power = ((I)shifted + (127 - 0x4B400000)) << 23;
      return x < least ? V{} : p * (V)power;
    }
  }
};

// f(std::integral_constant<int, n>) for blocks that cover `count`, none longer than MOST and all about equally long.
template <int MOST, class F> FK_INLINE void in_blocks(int count, F&& f) {
  const int blocks = (count + MOST - 1) / MOST;
  for (int b = 0, first = 0; b < blocks; b++) {
    const int size = (count - first) / (blocks - b);
    [&]<int... n>(std::integer_sequence<int, n...>) {
      (void)((size == n + 1 && (f(std::integral_constant<int, n + 1>{}, first), true)) || ...);
    }(std::make_integer_sequence<int, MOST>{});
    first += size;
  }
}

}  // namespace fedkeel
